#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: no fsync of a ublk disk succeeds for a write that the target has lost, in whichever order its program and the target are killed; no fsync fails when nothing was lost.
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

# serve COMMAND…: starts a program that serves the disk
serve() {
	must on c1 'rm -f /tmp/ublk'
	ON_SECONDS=900 spawn "$1" c1 "hcablk-ublk $* > /tmp/ublk 2>&1 & echo \$! > /tmp/pid; wait \$!"
	must wait_until c1 60 'grep -q ^/dev/ublkb0 /tmp/ublk'
}
# killed NAME: kills the program that was started under this name
killed() {
	must on c1 'kill -9 $(cat /tmp/pid)'
	join "$1"
	must wait_until c1 60 'hcablk-ublk list | grep -q "^/dev/ublkb0 vol1 left"'
}
# target_killed: kills and starts the target, which loses its drive's cache
target_killed() {
	must vm kill target
	must vm start target
	export_volume vol1 "$volatile_drive" c1
}
write() {
	must on c1 'dd if=/dev/urandom of=/dev/ublkb0 bs=64k count=4 oflag=direct status=none'
}
begin() {
	# More queues than processors: every queue of the volume must be used.
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
same "the program was killed: a flush succeeds" "done" "$(flush c1 /dev/ublkb0)"
# The reads use each of its queues.
target_killed
must wait_until c1 60 "dd if=/dev/ublkb0 of=/dev/null bs=4k count=1 iflag=direct status=none"
same "the target was killed after that flush: a flush succeeds" "done" "$(flush c1 /dev/ublkb0)"
finish recover

begin
killed add
target_killed
serve recover 0
same "the program and then the target were killed: a flush fails" "$eio" "$(flush c1 /dev/ublkb0)"
same "the program and then the target were killed: the next flush fails, too" "$eio" "$(flush c1 /dev/ublkb0)"
killed recover
serve recover 0
same "another program serves the disk: a flush still fails" "$eio" "$(flush c1 /dev/ublkb0)"
finish recover

begin
target_killed
must wait_until c1 60 "dd if=/dev/ublkb0 of=/dev/null bs=4k count=1 iflag=direct status=none"
# The program saves the loss a moment later.
killed add
serve recover 0
same "the target and then the program were killed: a flush fails" "$eio" "$(flush c1 /dev/ublkb0)"
finish recover

begin
killed add
serve recover 0
target_killed
must wait_until c1 60 "dd if=/dev/ublkb0 of=/dev/null bs=4k count=1 iflag=direct status=none"
same "the target loses a killed program's write later: a flush fails" "$eio" "$(flush c1 /dev/ublkb0)"
finish recover

begin
same "a flush succeeds" "done" "$(flush c1 /dev/ublkb0)"
target_killed
must wait_until c1 60 "dd if=/dev/ublkb0 of=/dev/null bs=4k count=1 iflag=direct status=none"
same "the target loses nothing after the flush: a flush succeeds" "done" "$(flush c1 /dev/ublkb0)"
finish add
