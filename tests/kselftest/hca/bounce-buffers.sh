#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: where no device reaches any memory but bounce buffers, into which all data is copied, and out of them, requests of every shape arrive whole and at their place.
# turn: 18
# takes: 40
# guests: hca-bounce
# timeout: 480

. "${0%/*}/../lib/lib.sh"
. "${0%/*}/../lib/hca.sh"

hca_in hca-bounce
like "all DMA is by bounce buffers" "swiotlb=force" "$(on c1 'cat /proc/cmdline')"
hca_pair
hca_verify
# Slots of 2 KiB; the target's buffers alone are more.
less "buffers of both sides are there" 128 "$(on c1 'cat /sys/kernel/debug/swiotlb/io_tlb_used')"
same "requests are of one segment" 1 "$(on c1 "cat /sys/block/${device##*/}/queue/max_segments")"
same "and no longer than one mapping" 256 "$(on c1 "cat /sys/block/${device##*/}/queue/max_hw_sectors_kb")"
hca_end
