#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: no flush of a guest succeeds for a write that the target has lost, in whichever order the program that serves its disk and the target are killed; a guest without a cache loses nothing; a guest continues with the next program.
# turn: 21
# takes: 140
# guests: target c1
# skips: siw debug
# timeout: 1200

. "${0%/*}/../lib/lib.sh"

[ "$rdma" = rxe ] || skip "the library needs memory windows, which soft-iWARP does not have"
add_volatile_drive
must on c1 'modprobe rdma_ucm'

socket=/run/vol1.sock
serve() {
	must on c1 'rm -f /tmp/vhost'
	ON_SECONDS=900 spawn serve c1 "hcablk-vhost-user serve -o queues=2 $socket $target_address vol1 >> /tmp/vhost 2>&1 & echo \$! > /tmp/pid; wait \$!"
	must wait_until c1 60 "grep -q ^$socket /tmp/vhost"
}
killed() {
	must on c1 'kill -9 $(cat /tmp/pid)'
	join serve
}
ended() {
	must on c1 'kill $(cat /tmp/pid)'
	join serve
}
# target_killed: kills and starts the target, which loses its drive's cache
target_killed() {
	must vm kill target
	must vm start target
	volume
}
volume() {
	export_volume vol1 "$volatile_drive" --wwid=6f0c2b62-5f5e-4c0e-9d57-0b8f3e9b0a47 c1
}
frontend() {
	ON_SECONDS=600 on c1 "hcablk-vhost-frontend $1 $socket" 2>&1 | tail -n 1
}
# load REQUESTS: starts a guest that continues with the next program
load() {
	ON_SECONDS=900 spawn load c1 "hcablk-vhost-frontend load $socket $1 > /tmp/load 2>&1"
	must wait_until c1 60 'grep -q started /tmp/load'
}

volume
serve
same "a guest without a cache writes" "done" "$(frontend through)"
target_killed
same "the target was killed: the guest without a cache has lost nothing" "write true, zeroes true" "$(frontend check)"
check "the program ends in order" ended

serve
same "a guest writes" "done" "$(frontend write)"
killed
serve
same "the program was killed: a flush succeeds" "done" "$(frontend flush)"
target_killed
same "the target was killed after that flush: a flush succeeds" "done" "$(frontend flush)"
check "the program ends with success after a flush" ended

serve
must frontend write
killed
target_killed
serve
same "the program and then the target were killed: a flush fails" "failed 1" "$(frontend flush)"
same "the program and then the target were killed: the next flush fails, too" "failed 1" "$(frontend flush)"
killed
serve
same "another program serves the disk: a flush still fails" "failed 1" "$(frontend flush)"
refuse "a program that ends with unreported losses fails" ended
like "the program says what to do about the loss" "hcablk-vhost-user forget $socket" "$(on c1 'cat /tmp/vhost')"
serve
same "the program after that serves the disk: a flush still fails" "failed 1" "$(frontend flush)"
like "the loss cannot be forgotten while a program serves the disk" "another program serves" "$(on c1 "hcablk-vhost-user forget $socket" 2>&1)"
refuse "a program that still has the loss fails at its end" ended
must on c1 "hcablk-vhost-user forget $socket"
serve
same "flushes succeed when the loss was forgotten" "done" "$(frontend flush)"

must frontend write
target_killed
same "the target was killed: a flush fails" "failed 1" "$(frontend flush)"
killed
serve
same "the target and then the program were killed: a flush still fails" "failed 1" "$(frontend flush)"
refuse "the program that has the loss fails at its end" ended
must on c1 "hcablk-vhost-user forget $socket"

# A guest under load survives its programs; the target keeps all acknowledged writes.
must on target 'hcablk target unexport vol1'
export_volume vol1 "$drive" --wwid=6f0c2b62-5f5e-4c0e-9d57-0b8f3e9b0a48 c1
serve
load "$(few 4000)"
for connection in 1 2 3; do
	must wait_until c1 120 "grep -q '^working $connection' /tmp/load"
	killed
	serve
done
check "the guest's data is right after its program was killed three times" join load
like "the guest has used four connections" '^done [0-9]* 4$' "$(on c1 'tail -n 1 /tmp/load')"
check "the last program ends with success" ended
must on target 'hcablk target unexport vol1'
