#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: a program proves its identity for each session that follows a lost one, and reports why it is refused when the keys have changed.
# turn: 18
# takes: 30
# guests: target c1
# waits: yes
# skips: siw
# timeout: 600

. "${0%/*}/../lib/lib.sh"

[ "$rdma" = rxe ] || skip "the library needs memory windows, which soft-iWARP does not have"
must on c1 'modprobe rdma_ucm'

# says TEXT: waits until the program has printed the text
says() {
	wait_until c1 100 "grep -q '$1' /tmp/held"
}

use_keys c1
export_volume vol1 "$drive" c1
ON_SECONDS=500 spawn held c1 "exec hcablk-user --keys --queues=3 --ctrl-loss-tmo=$((10 * slow)) $target_address vol1 hold > /tmp/held 2>&1"
must says '^open'
for n in 1 2; do
	must on target 'hcablk target unexport --force vol1'
	must wait_until c1 60 "[ \$(grep -c '^lost: ' /tmp/held) = $n ]"
	export_volume vol1 "$drive" c1
	check "session $n was lost: the next session is proven" says "^reconnects $n"
done
must on target 'hcablk target unexport --force vol1'
must wait_until c1 60 "[ \$(grep -c '^lost: ' /tmp/held) = 3 ]"
must on c1 'hcablk key generate host --rotate > /dev/null'
key=$(on c1 'hcablk key show host')
must on target "echo '$key' | hcablk key add host $(host_id c1) && hcablk key retire host $(host_id c1)"
export_volume vol1 "$drive" c1
check "the program ends when the target accepts only another key of the host" join held
like "the program reports that its proof was refused" '^ended: .*does not accept the proof' "$(on c1 'grep ^ended /tmp/held')"
must on c1 'hcablk key apply --force'
check "a program with the new key opens the volume" on c1 "hcablk-user --keys $target_address vol1 info"
must on target 'hcablk target unexport vol1'
