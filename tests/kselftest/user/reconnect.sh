#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: programs with the library survive lost sessions without an error or wrong data, and get an error when the target has lost writes that they had not flushed.
# turn: 16
# takes: 75
# waits: yes
# skips: siw debug
# timeout: 1500

. "${0%/*}/../lib/lib.sh"
. "${0%/*}/../lib/lost.sh"

[ "$rdma" = rxe ] || skip "the library needs memory windows, which soft-iWARP does not have"
add_volatile_drive
must on c1 'modprobe rdma_ucm'

# says FILE TEXT: waits until a program has printed the text
says() {
	wait_until c1 100 "grep -q '$2' $1"
}
# volume: exports the drive without a write cache, so that a restarted target has lost nothing
volume() {
	must on target "echo 'write through' > /sys/block/$(on target "basename \$(readlink -f $drive)")/queue/write_cache"
	export_volume vol1 "$drive" c1
}

volume
spawn load c1 "n=0; until [ -e /tmp/stop ]; do n=\$((n + 1)); hcablk-user --queues=2 $target_address vol1 verify \$n || exit 1; done"
spawn held c1 "hcablk-user --event $target_address vol1 hold > /tmp/held 2>&1 & echo \$! > /tmp/pid; wait"
must says /tmp/held open
must on target 'hcablk target unexport --force vol1'
check "the export ends: the program reports the lost session" says /tmp/held '^lost: '
volume
check "the volume is exported again: the program has a new session" says /tmp/held '^reconnects 1'
must vm link-down target 0
check "the cable is cut: the program reports the lost session" wait_until c1 100 "[ \$(grep -c '^lost: ' /tmp/held) = 2 ]"
must vm link-up target 0
check "the cable is plugged in: the program has a new session" says /tmp/held '^reconnects 2'
must vm kill target
check "the target is killed: the program reports the lost session" wait_until c1 100 "[ \$(grep -c '^lost: ' /tmp/held) = 3 ]"
must vm start target
volume
check "the target is back: the program has a new session" says /tmp/held '^reconnects 3'
must on c1 'touch /tmp/stop'
check "programs that wrote over all losses read their data back" join load
check "a host is evicted" on target "hcablk target evict vol1 $(host_id c1)"
check "the evicted host's program ends" join held
like "the program reports the eviction" '^ended: .*evicted' "$(on c1 'grep ^ended /tmp/held')"
must on target "hcablk target admit vol1 $(host_id c1) && hcablk target unexport vol1"

# The volume becomes read-only, and has no ring: waiting requests use another data path.
volume
spawn reads c1 "hcablk-user $target_address vol1 hold > /tmp/reads 2>&1 & echo \$! > /tmp/pid; wait"
must says /tmp/reads open
must on target 'hcablk target unexport --force vol1'
must says /tmp/reads '^lost: '
export_volume vol1 "$drive" --read-only c1
check "the next session reads a volume that has become read-only" says /tmp/reads '^reconnects 1'
must on c1 'kill $(cat /tmp/pid)'
join reads
must wait_until target 60 "$no_queue_pairs"
must on target 'hcablk target unexport vol1'

# Writes that were not flushed. The drive keeps them in its cache until then.
# promises: starts a program that writes, and flushes on a signal
promises() {
	must on c1 "rm -f /tmp/go /tmp/promise"
	ON_SECONDS=300 spawn promise c1 "hcablk-user $target_address vol1 promise /tmp/go > /tmp/promise 2>&1"
	must says /tmp/promise written
}
export_volume vol1 "$volatile_drive" c1
promises
must vm link-down target 0
must says /tmp/promise '^lost: '
must vm link-up target 0
must says /tmp/promise '^reconnects 1'
must on c1 'touch /tmp/go'
check "the program ends well after only the network was lost" join promise
same "the program has lost no write after only the network was lost" "flush: kept flush: kept fua: kept write: kept" "$(on c1 "tail -n 4 /tmp/promise | xargs")"
promises
must vm kill target
must vm start target
export_volume vol1 "$volatile_drive" c1
must says /tmp/promise '^reconnects 1'
must on c1 'touch /tmp/go'
check "the program ends well after the target lost its cache" join promise
same "each flush and each FUA write fails after the target lost its cache" 3 "$(on c1 "grep -c 'has lost acknowledged writes' /tmp/promise")"
like "other writes succeed after the target lost its cache" '^write: kept' "$(on c1 'tail -n 1 /tmp/promise')"
promises
must on c1 'touch /tmp/go'
check "the program opens the volume again" join promise
same "the program loses no write after opening the volume again" "flush: kept flush: kept fua: kept write: kept" "$(on c1 "tail -n 4 /tmp/promise | xargs")"
