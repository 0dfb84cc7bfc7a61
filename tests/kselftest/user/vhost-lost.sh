#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: no flush of a guest covers a write that the target has lost, in whatever order the program that serves its disk and the target are killed; a guest that knows of no cache loses nothing; and a guest goes on with the next program.
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
# target_killed: and comes back, without what was in its cache
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
# load REQUESTS: a guest that goes on with another program begins
load() {
	ON_SECONDS=900 spawn load c1 "hcablk-vhost-frontend load $socket $1 > /tmp/load 2>&1"
	must wait_until c1 60 'grep -q started /tmp/load'
}

volume
serve
same "a guest that knows of no cache writes" "done" "$(frontend through)"
target_killed
same "the target was killed: nothing is lost" "write true, zeroes true" "$(frontend check)"
check "the program ends in order" ended

serve
same "a guest writes" "done" "$(frontend write)"
killed
serve
same "the program was killed: nothing is lost" "done" "$(frontend flush)"
target_killed
same "nor is anything when the target is killed after that" "done" "$(frontend flush)"
check "the program ends in order" ended

serve
must frontend write
killed
target_killed
serve
same "the program was killed, and the target: a flush fails" "failed 1" "$(frontend flush)"
same "so does the next one" "failed 1" "$(frontend flush)"
killed
serve
same "another program does not change that" "failed 1" "$(frontend flush)"
refuse "nor does one that ends in order, which fails" ended
like "and says what to do" "hcablk-vhost-user forget $socket" "$(on c1 'cat /tmp/vhost')"
serve
same "nor does the next one" "failed 1" "$(frontend flush)"
like "it is not forgotten while a program serves it" "another program serves" "$(on c1 "hcablk-vhost-user forget $socket" 2>&1)"
refuse "which ends" ended
must on c1 "hcablk-vhost-user forget $socket"
serve
same "when it is forgotten, flushes succeed" "done" "$(frontend flush)"

must frontend write
target_killed
same "the target was killed: a flush fails" "failed 1" "$(frontend flush)"
killed
serve
same "the program too: it still fails" "failed 1" "$(frontend flush)"
refuse "it ends" ended
must on c1 "hcablk-vhost-user forget $socket"

# What is under load outlives programs; the target keeps what it has acknowledged.
must on target 'hcablk target unexport vol1'
export_volume vol1 "$drive" --wwid=6f0c2b62-5f5e-4c0e-9d57-0b8f3e9b0a48 c1
serve
load "$(few 4000)"
for connection in 1 2 3; do
	must wait_until c1 120 "grep -q '^working $connection' /tmp/load"
	killed
	serve
done
check "the program is killed three times: the guest's requests go on, and what was written is read" join load
like "over four connections" '^done [0-9]* 4$' "$(on c1 'tail -n 1 /tmp/load')"
check "the program ends in order" ended
must on target 'hcablk target unexport vol1'
