#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: unexport without --force refuses while a host that has lost its connection may reconnect, and names the host.
# turn: 4
# takes: 60
# guests: target c1

. "${0%/*}/../lib/lib.sh"

volume=$target/volumes/vol1
lost='connection was lost'
# lost_now: prints the target's list of lost hosts.
lost_now() {
	on target "cut -d' ' -f1 $volume/lost"
}
# has_no_session: waits until the target has noticed that the sessions are lost.
has_no_session() {
	must wait_until target $((60 * slow)) "[ -z \"\$(cat $volume/clients)\" ]"
}

export_volume vol1 "$drive" c1
connect c1 vol1 --ctrl-loss-tmo 3000
silent "no host is lost while the disk is connected" lost_now
must vm link-down target 0
has_no_session
same "the host whose network failed is lost" "$(host_id c1)" "$(lost_now)"
like "unexport refuses while the host may reconnect" "$(host_id c1).*$lost" "$(on target 'hcablk target unexport vol1 2>&1')"
must vm link-up target 0
must wait_until c1 120 "grep -q live $initiator/vol1/state"
silent "the host that has reconnected is not lost" lost_now
like "unexport refuses while the host is connected" "is in use by $(host_id c1)" "$(on target 'hcablk target unexport vol1 2>&1')"
disconnect c1 vol1
check "unexport succeeds after an orderly end" on target 'hcablk target unexport vol1'

# The next start of the host's machine replaces the lost instance.
export_volume vol1 "$drive" c1
connect c1 vol1
must vm kill c1
has_no_session
same "the host whose machine failed is lost" "$(host_id c1)" "$(lost_now)"
must vm start c1
connect c1 vol1
disconnect c1 vol1
silent "a host that was restarted and disconnected is not lost" lost_now

connect c1 vol1
must vm kill c1
has_no_session
refuse "unexport refuses again" on target 'hcablk target unexport vol1'
must on target "hcablk target evict vol1 $(host_id c1)"
silent "an evicted host is not lost" lost_now
check "unexport succeeds when the lost host is evicted" on target 'hcablk target unexport vol1'
must vm start c1
