#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: when an export ends and its drive cannot make the acknowledged writes durable, the next flush fails, in any order in which three paths notice the end.
# turn: 19
# takes: 60
# waits: yes
# timeout: 800

. "${0%/*}/../lib/lib.sh"
. "${0%/*}/../lib/multi.sh"

rounds=6
two_cards 1 target c1
target_address=10.77.1.1
size=$(on target "blockdev --getsz $drive2")
# table WHAT: replaces the device-mapper table of the drive.
table() {
	must on target "dmsetup suspend --nolockfs bad && printf '0 $size $1\n' | dmsetup load bad && dmsetup resume bad"
}
must on target "modprobe dm_mod && printf '0 $size linear $drive2 0\n' | dmsetup create bad && dmsetup mknodes"
export_bad() {
	export_volume bad "/dev/$(on target 'dmsetup info -c --noheadings -o blkdevname bad')" --mode=cached \
		--wwid=6f0c2b62-5f5e-4c0e-9d57-0b8f3e9b0b68 c1
}
export_bad
connect c1 bad --ctrl-loss-tmo 600 --queues 1
# The kernel reports such an error twice, to the first two callers.
for path in 1 2; do
	add_path c1 bad $path 10.77.2.1
done

# flush: flushes the disk; prints the error, or "flushed"
flush() {
	on c1 "dd if=/dev/null of=$device conv=fsync,notrunc status=none 2>&1 && echo flushed"
}

failed=0
for ((round = 1; round <= rounds; round++)); do
	must disk_is c1 bad live
	must on c1 "dd if=/dev/zero of=$device bs=64k count=4 oflag=direct conv=notrunc status=none"
	table error
	must on target 'hcablk target unexport --force bad'
	must disk_is c1 bad queueing
	table "linear $drive2 0"
	export_bad
	must disk_is c1 bad live
	[[ "$(flush)" != *"Input/output error"* ]] || failed=$((failed + 1))
	must on c1 "dd if=/dev/zero of=$device bs=64k count=1 oflag=direct conv=notrunc,fsync status=none"
done
same "after each of $rounds exports that lost writes the next flush fails" $rounds $failed

# No write is lost: no flush fails, even if both paths acknowledge writes until the end.
failed=0
for ((round = 1; round <= rounds; round++)); do
	must disk_is c1 bad live
	writes=$(on c1 "awk '{ print \$5 }' /sys/block/${device#/dev/}/stat")
	must on c1 'rm -f /tmp/stop'
	ON_SECONDS=200 spawn writer c1 "until [ -e /tmp/stop ]; do
		dd if=/dev/zero of=$device bs=4k count=20 oflag=direct conv=notrunc status=none || exit
	done"
	must wait_until c1 60 "awk '{ exit !(\$5 > $writes + 20) }' /sys/block/${device#/dev/}/stat"
	must on target "hcablk target unexport --force bad"
	export_bad
	must disk_is c1 bad live
	must on c1 'touch /tmp/stop'
	check "round $round: the writer succeeds while the export ends" join writer
	[ "$(flush)" = flushed ] || failed=$((failed + 1))
done
must on c1 'rm -f /tmp/stop'
same "after each of $rounds exports that lost no write the next flush succeeds" 0 $failed
disconnect c1 bad
must on target 'hcablk target unexport bad && dmsetup remove bad'
