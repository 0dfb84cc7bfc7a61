#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: where devices reach no memory but bounce buffers, so that all data is copied, requests of every shape arrive whole and at their place.
# turn: 18
# takes: 40
# guests: hca-bounce
# timeout: 480

. "${0%/*}/../lib/lib.sh"
. "${0%/*}/../lib/hca.sh"

hca_in hca-bounce
like "all DMA uses bounce buffers" "swiotlb=force" "$(on c1 'cat /proc/cmdline')"
hca_pair
hca_verify
# Slots of 2 KiB; the target's buffers alone need more than that.
less "both sides use bounce buffers" 128 "$(on c1 'cat /sys/kernel/debug/swiotlb/io_tlb_used')"
same "requests have one segment" 1 "$(on c1 "cat /sys/block/${device##*/}/queue/max_segments")"
same "requests are limited to one mapping" 256 "$(on c1 "cat /sys/block/${device##*/}/queue/max_hw_sectors_kb")"
same "without an IOMMU no write is copied" 0 "$(stat_of c1 "$initiator/vol1" copied_writes)"
hca_end
