#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: connecting and disconnecting again and again, with and without I/O, leaks nothing.
# turn: 11
# takes: 10

. "${0%/*}/../lib/lib.sh"

export_volume vol1 "$drive" c1 c2
resources() {
	on "$1" 'rdma resource show; rdma resource show qp | wc -l'
}
connect c1 vol1
disconnect c1 vol1
must wait_until target 60 "[ -z \"\$(cat $target/volumes/vol1/clients)\" ]"
before_client=$(resources c1)
before_target=$(resources target)
for round in 1 2 3 4 5 6; do
	connect c1 vol1
	[ $((round % 2)) = 0 ] || must on c1 "dd if=$device of=/dev/null bs=64k count=16 iflag=direct"
	disconnect c1 vol1
done
pass "a client connects and disconnects six times"
must wait_until target 60 "[ -z \"\$(cat $target/volumes/vol1/clients)\" ]"
same "the client's RDMA resources are as before" "$before_client" "$(resources c1)"
same "the target's RDMA resources are as before" "$before_target" "$(resources target)"

spawn first c1 "hcablk connect $target_address vol1"
spawn second c2 "hcablk connect $target_address vol1"
check "two clients connect at the same time: the first" join first
check "two clients connect at the same time: the second" join second
same "the target has both sessions" 2 "$(on target "wc -l < $target/volumes/vol1/clients")"
