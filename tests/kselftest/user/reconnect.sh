#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: programs with the library outlive lost sessions without an error or wrong data, and are told when the target has lost what they had not flushed.
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

# says FILE TEXT: a program has printed that
says() {
	wait_until c1 100 "grep -q '$2' $1"
}
# volume: exports the drive without a cache, so that a target that starts again has forgotten nothing
volume() {
	must on target "echo 'write through' > /sys/block/$(on target "basename \$(readlink -f $drive)")/queue/write_cache"
	export_volume vol1 "$drive" c1
}

volume
spawn load c1 "n=0; until [ -e /tmp/stop ]; do n=\$((n + 1)); hcablk-user --queues=2 $target_address vol1 verify \$n || exit 1; done"
spawn held c1 "hcablk-user --event $target_address vol1 hold > /tmp/held 2>&1 & echo \$! > /tmp/pid; wait"
must says /tmp/held open
must on target 'hcablk target unexport --force vol1'
check "the export ends: the program sees that the session is lost" says /tmp/held '^lost: '
volume
check "it is exported: there is another session" says /tmp/held '^reconnects 1'
must vm link-down target 0
check "the cable is cut: it is lost once more" wait_until c1 100 "[ \$(grep -c '^lost: ' /tmp/held) = 2 ]"
must vm link-up target 0
check "the cable is in: and connected once more" says /tmp/held '^reconnects 2'
must vm kill target
check "the target is killed" wait_until c1 100 "[ \$(grep -c '^lost: ' /tmp/held) = 3 ]"
must vm start target
volume
check "it is back: and so is the program" says /tmp/held '^reconnects 3'
must on c1 'touch /tmp/stop'
check "whoever has written over all that reads what was written" join load
check "a host is evicted" on target "hcablk target evict vol1 $(host_id c1)"
check "its program ends" join held
like "and says why" '^ended: .*evicted' "$(on c1 'grep ^ended /tmp/held')"
must on target "hcablk target admit vol1 $(host_id c1) && hcablk target unexport vol1"

# Read-only from then on, with no ring: what waits goes another way.
volume
spawn reads c1 "hcablk-user $target_address vol1 hold > /tmp/reads 2>&1 & echo \$! > /tmp/pid; wait"
must says /tmp/reads open
must on target 'hcablk target unexport --force vol1'
must says /tmp/reads '^lost: '
export_volume vol1 "$drive" --read-only c1
check "a volume that has become read-only is read by the next session" says /tmp/reads '^reconnects 1'
must on c1 'kill $(cat /tmp/pid)'
join reads
must wait_until target 60 "$no_queue_pairs"
must on target 'hcablk target unexport vol1'

# What was not flushed. The drive keeps it in its cache until then.
# promises NAME: begins a program that writes, and flushes when it is told
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
check "the network was away, and the target was not" join promise
same "every promise is kept" "flush: kept flush: kept fua: kept write: kept" "$(on c1 "tail -n 4 /tmp/promise | xargs")"
promises
must vm kill target
must vm start target
export_volume vol1 "$volatile_drive" c1
must says /tmp/promise '^reconnects 1'
must on c1 'touch /tmp/go'
check "the target has lost its cache: the program ends" join promise
same "each flush and each write with FUA fails" 3 "$(on c1 "grep -c 'has lost acknowledged writes' /tmp/promise")"
like "other writes do not" '^write: kept' "$(on c1 'tail -n 1 /tmp/promise')"
promises
must on c1 'touch /tmp/go'
check "the volume is opened anew" join promise
same "and every promise is kept again" "flush: kept flush: kept fua: kept write: kept" "$(on c1 "tail -n 4 /tmp/promise | xargs")"
