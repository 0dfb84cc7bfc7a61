#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: a disk whose drive was read-only when its paths began is written as soon as the drive allows it, and none of its paths ends for that.
# turn: 2
# takes: 10

. "${0%/*}/../lib/lib.sh"
. "${0%/*}/../lib/multi.sh"

two_cards 1 target c1
target_address=10.77.1.1
export_volume vol1 "$drive" c1
must on target "blockdev --setro $drive"
connect c1 vol1 --ctrl-loss-tmo 600
same "the drive is read-only, and so is the disk" 1 "$(on c1 "cat /sys/block/$disk/ro")"
add_path c1 vol1 1 10.77.2.1
must path_is c1 vol1 1 live
# Each with its epoch.
sessions() {
	on target "cut -d' ' -f1-4 $target/ports/*/sessions | sort"
}
sessions=$(sessions)
must on target "blockdev --setrw $drive"
check "the drive is writable again, and so is the disk" wait_until c1 20 "grep -qx 0 /sys/block/$disk/ro"
# Both of its paths are chosen in turn.
must on c1 "echo round-robin > $initiator/vol1/policy"
check "it is written by each path" on c1 "dd if=/dev/zero of=$device bs=4k count=32 oflag=direct"
same "no path was lost" "$sessions" "$(sessions)"
must on target "blockdev --setro $drive"
check "and read-only once more" wait_until c1 20 "grep -qx 1 /sys/block/$disk/ro"
refuse "it is not written then" on c1 "dd if=/dev/zero of=$device bs=4k count=1 oflag=direct"
must on target "blockdev --setrw $drive"
disconnect c1 vol1
must on target 'hcablk target unexport vol1'

# An export that is read-only by its setting stays so.
export_volume vol1 "$drive" --read-only c1
connect c1 vol1
must on target "blockdev --setrw $drive"
same "an export that is read-only stays so" 1 "$(on c1 "cat /sys/block/$disk/ro")"
disconnect c1 vol1
must on target 'hcablk target unexport vol1'
