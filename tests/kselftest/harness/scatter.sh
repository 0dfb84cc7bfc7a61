#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: the helper that compares what it wrote passes on a sound drive, and notices one that loses data.
# turn: 8
# takes: 10
# guests: target

. "${0%/*}/../lib/lib.sh"

for case in sizes pages edges gaps bytes random; do
	check "a drive keeps what it is given: $case" on target "hcablk-scatter $drive $case 7"
done
must on target 'modprobe null_blk nr_devices=1 memory_backed=0 gb=1'
refuse "a disk that keeps nothing is noticed" on target 'hcablk-scatter /dev/nullb0 random 7'
