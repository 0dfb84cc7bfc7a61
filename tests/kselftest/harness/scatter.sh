#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: hcablk-scatter, which compares what it wrote, passes on a sound drive and fails on one that loses data.
# turn: 8
# takes: 10
# guests: target

. "${0%/*}/../lib/lib.sh"

for case in sizes pages edges gaps bytes random; do
	check "a sound drive passes: $case" on target "hcablk-scatter $drive $case 7"
done
must on target 'modprobe null_blk nr_devices=1 memory_backed=0 gb=1'
refuse "a drive that loses data fails" on target 'hcablk-scatter /dev/nullb0 random 7'
