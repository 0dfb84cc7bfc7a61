#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: when a volume becomes read-only or writable while a path is lost, the path comes back, and the disk follows the change before it sends a request.
# turn: 8
# takes: 20
# waits: yes

. "${0%/*}/../lib/lib.sh"
. "${0%/*}/../lib/multi.sh"

two_cards 1 target c1
target_address=10.77.1.1
must on target 'modprobe loop max_loop=1 && truncate -s 64M /tmp/image && losetup /dev/loop0 /tmp/image'
export_volume vol1 /dev/loop0 --wwid=6f0c2b62-5f5e-4c0e-9d57-0b8f3e9b0a08 c1
connect c1 vol1 --ctrl-loss-tmo 600 --queues 2 --keep-alive-tmo $((1 * slow))

# becomes ro|rw: changes the volume's drive
becomes() {
	must on target "blockdev --set$1 /dev/loop0"
}
# is_ro 0|1: waits until the disk's read-only flag has this value
is_ro() {
	wait_until c1 30 "[ \$(cat /sys/block/$disk/ro) = $1 ]"
}
writes() {
	on c1 "dd if=/dev/zero of=$device bs=4k count=1 oflag=direct"
}
for what in ro rw; do
	cut path1
	must disk_is c1 vol1 queueing
	becomes $what
	mend path1
	check "$what while the only path was lost: the path comes back" disk_is c1 vol1 live
	if [ $what = ro ]; then
		check "the disk is read-only after the loss" is_ro 1
		refuse "the read-only disk refuses a write" writes
	else
		check "the disk is writable after the loss" is_ro 0
		check "the writable disk is written" writes
	fi
done
add_path c1 vol1 1 10.77.2.1
must disk_is c1 vol1 live
for what in ro rw; do
	cut path2
	must disk_is c1 vol1 degraded
	becomes $what
	check "$what while one of two paths was lost: the disk follows over the other" is_ro "$([ $what = ro ] && echo 1 || echo 0)"
	mend path2
	check "$what: the lost path comes back" disk_is c1 vol1 live
	check "$what: the returned path keeps the disk's read-only flag" is_ro "$([ $what = ro ] && echo 1 || echo 0)"
done
same "the client has no errors" 0 "$(stat_of c1 $initiator/vol1 errors)"
disconnect c1 vol1
must on target 'hcablk target unexport vol1 && losetup -d /dev/loop0; rm /tmp/image'
