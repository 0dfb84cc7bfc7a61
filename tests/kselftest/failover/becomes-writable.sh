#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: a disk whose drive was read-only when its paths connected can be written as soon as the drive allows writes, and no path is lost.
# turn: 2
# takes: 10

. "${0%/*}/../lib/lib.sh"
. "${0%/*}/../lib/multi.sh"

two_cards 1 target c1
target_address=10.77.1.1
export_volume vol1 "$drive" c1
must on target "blockdev --setro $drive"
connect c1 vol1 --ctrl-loss-tmo 600
same "the disk of a read-only drive is read-only" 1 "$(on c1 "cat /sys/block/$disk/ro")"
add_path c1 vol1 1 10.77.2.1
must path_is c1 vol1 1 live
# The sessions with their epochs.
sessions() {
	on target "cut -d' ' -f1-4 $target/ports/*/sessions | sort"
}
sessions=$(sessions)
must on target "blockdev --setrw $drive"
check "the disk becomes writable with its drive" wait_until c1 20 "grep -qx 0 /sys/block/$disk/ro"
# The policy uses both paths in turn.
must on c1 "echo round-robin > $initiator/vol1/policy"
check "the disk is written over both paths" on c1 "dd if=/dev/zero of=$device bs=4k count=32 oflag=direct"
same "no path has a new session" "$sessions" "$(sessions)"
must on target "blockdev --setro $drive"
check "the disk becomes read-only with its drive" wait_until c1 20 "grep -qx 1 /sys/block/$disk/ro"
refuse "the read-only disk refuses a write" on c1 "dd if=/dev/zero of=$device bs=4k count=1 oflag=direct"
must on target "blockdev --setrw $drive"
disconnect c1 vol1
must on target 'hcablk target unexport vol1'

# A volume that is exported read-only stays read-only.
export_volume vol1 "$drive" --read-only c1
connect c1 vol1
must on target "blockdev --setrw $drive"
same "the disk of a volume that is exported read-only stays read-only" 1 "$(on c1 "cat /sys/block/$disk/ro")"
disconnect c1 vol1
must on target 'hcablk target unexport vol1'
