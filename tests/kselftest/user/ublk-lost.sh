#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: no fsync of a ublk disk covers a write that the target has lost, in whatever order its program and the target are killed; and none fails when nothing was lost.
# turn: 17
# takes: 70
# guests: target c1
# skips: siw debug
# timeout: 900

. "${0%/*}/../lib/lib.sh"
. "${0%/*}/../lib/lost.sh"

[ "$rdma" = rxe ] || skip "the library needs memory windows, which soft-iWARP does not have"
add_volatile_drive
on c1 'modprobe ublk_drv' || skip "the kernel has no ublk"
must on c1 'modprobe rdma_ucm'

# serve COMMAND…: a program serves the disk
serve() {
	must on c1 'rm -f /tmp/ublk'
	ON_SECONDS=900 spawn "$1" c1 "hcablk-ublk $* > /tmp/ublk 2>&1 & echo \$! > /tmp/pid; wait \$!"
	must wait_until c1 60 'grep -q ^/dev/ublkb0 /tmp/ublk'
}
# killed NAME: the program that was begun so is killed
killed() {
	must on c1 'kill -9 $(cat /tmp/pid)'
	join "$1"
	must wait_until c1 60 'hcablk-ublk list | grep -q "^/dev/ublkb0 vol1 left"'
}
# target_killed: and comes back, without what was in its cache
target_killed() {
	must vm kill target
	must vm start target
	export_volume vol1 "$volatile_drive" c1
}
write() {
	must on c1 'dd if=/dev/urandom of=/dev/ublkb0 bs=64k count=4 oflag=direct status=none'
}
begin() {
	# More than there are processors: each that the volume has must be used.
	serve add -o queues=9 "$target_address" vol1
	write
}
finish() {
	must on c1 'hcablk-ublk remove 0'
	join "$1"
	must wait_until c1 60 '[ ! -e /sys/block/ublkb0 ]'
}

export_volume vol1 "$volatile_drive" c1
begin
killed add
serve recover 0
same "the program was killed: nothing is lost" "done" "$(flush c1 /dev/ublkb0)"
# By each of its queues.
target_killed
must wait_until c1 60 "dd if=/dev/ublkb0 of=/dev/null bs=4k count=1 iflag=direct status=none"
same "nor is anything when the target is killed after that" "done" "$(flush c1 /dev/ublkb0)"
finish recover

begin
killed add
target_killed
serve recover 0
same "the program was killed, and the target: a flush fails" "$eio" "$(flush c1 /dev/ublkb0)"
same "so does the next one" "$eio" "$(flush c1 /dev/ublkb0)"
killed recover
serve recover 0
same "another program does not change that" "$eio" "$(flush c1 /dev/ublkb0)"
finish recover

begin
target_killed
must wait_until c1 60 "dd if=/dev/ublkb0 of=/dev/null bs=4k count=1 iflag=direct status=none"
# What is saved follows.
killed add
serve recover 0
same "the target was killed, and then the program: a flush fails" "$eio" "$(flush c1 /dev/ublkb0)"
finish recover

begin
killed add
serve recover 0
target_killed
must wait_until c1 60 "dd if=/dev/ublkb0 of=/dev/null bs=4k count=1 iflag=direct status=none"
same "what a killed program had written is lost later: a flush fails" "$eio" "$(flush c1 /dev/ublkb0)"
finish recover

begin
same "a flush succeeds" "done" "$(flush c1 /dev/ublkb0)"
target_killed
must wait_until c1 60 "dd if=/dev/ublkb0 of=/dev/null bs=4k count=1 iflag=direct status=none"
same "the target has lost nothing then" "done" "$(flush c1 /dev/ublkb0)"
finish add
