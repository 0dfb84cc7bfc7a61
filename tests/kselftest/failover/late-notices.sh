#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: a late notice over a slow path does not undo what a faster path has reported since.
# turn: 9
# takes: 15
# guests: target c1

. "${0%/*}/../lib/lib.sh"
. "${0%/*}/../lib/multi.sh"

two_cards 1 target c1
target_address=10.77.1.1
must on target 'modprobe loop max_loop=1 && truncate -s 64M /tmp/image && losetup /dev/loop0 /tmp/image'
export_volume vol1 /dev/loop0 --wwid=6f0c2b62-5f5e-4c0e-9d57-0b8f3e9b0a08 c1
connect c1 vol1 --ctrl-loss-tmo 600 --queues 1 --keep-alive-tmo $((30 * slow))
add_path c1 vol1 1 10.77.2.1
must disk_is c1 vol1 live

# grows MIB: grows the volume, and waits for the disk
grows() {
	must on target "truncate -s $1M /tmp/image && losetup -c /dev/loop0"
	check "the disk has $1 MiB" wait_until c1 30 "[ \$(blockdev --getsz $device) = $(($1 * 2048)) ]"
}
sizes() {
	in_log c1 "vol1: the volume has [0-9]* sectors" | grep -o "has [0-9]*" | tr -dc "0-9\n"
}
# have_notices N: waits until the paths have N notices
have_notices() {
	wait_until c1 60 "[ \$(awk '/^notices / { print \$2 }' $initiator/vol1/stats) -ge $1 ]"
}
# The second path delays the target's notices by seconds: that of 128 MiB arrives after the first path's of 160 MiB.
grows 96
must have_notices 2
netem target path2 delay $((2000 * slow))ms
grows 128
must wait_until target 30 "tc -s qdisc show dev path2 | grep -q 'backlog [1-9]'"
grows 160
check "the second path's notice of 128 MiB arrives" have_notices 5
netem target path2
grows 192
sizes=$(sizes)
same "the disk has only grown" "$(sort -n <<< "$sizes")" "$sizes"
disconnect c1 vol1
must on target 'hcablk target unexport vol1 && losetup -d /dev/loop0; rm /tmp/image'
