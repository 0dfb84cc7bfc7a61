#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: over devices that reach memory only at DMA addresses, requests of every shape arrive whole and at their place.
# turn: 7
# takes: 60
# guests: hca
# timeout: 480

. "${0%/*}/../lib/lib.sh"
. "${0%/*}/../lib/hca.sh"

hca_pair
hca_verify
same "without an IOMMU no write is copied" 0 "$(stat_of c1 "$initiator/vol1" copied_writes)"
hca_end
