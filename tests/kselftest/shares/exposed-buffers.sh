#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: a buffer whose RDMA READ into registered memory failed goes to no other session that waits for buffers.
# tier: heart
# turn: 8
# takes: 30
# skips: siw

. "${0%/*}/../lib/lib.sh"
[ "$rdma" = rxe ] || skip "the nonsense peer's library speaks soft-RoCE only"
. "${0%/*}/../lib/shares.sh"
. "${0%/*}/../lib/peer.sh"

# The setting of iWARP, where the peer may write to the buffers until the region over them is invalidated. The driver itself
# checks buffers that move between sessions, and a line with BUG: fails this test.
must on target 'modprobe hcablk_target force_mr=1 && hcablk target listen --id 1 --buffer-mib 16 --memory-mib 64'
export_volume vol1 "$drive" c1 c2
least_of 64
# A quarter of the limit is not shared.
must on target "echo $(((($(mib_for $((2 * least))) + 2) * 4 + 2) / 3)) > $port/memory_mib"
connect c2 vol1 --queues 1 --queue-depth 64 --small-write 0 --eager-write 0
ON_SECONDS=330 spawn load c2 "fio --name=l --filename=$device --direct=1 --ioengine=libaio --rw=randwrite --bs=512k --iodepth=64 \
	--offset=64M --size=64M --time_based --runtime=300 --norandommap 2>&1"
waiting="[ \$(awk '\$1 == \"waiting\" { print \$2 }' $port/memory) != 0 ]"
rounds=12
# The account must return to this before the next session: it would be refused while the last one's memory is charged.
reserved=$(memory_of reserved)
session=70000
for ((n = 0; n < rounds; n++)); do
	# A connection that fails on a busy machine says nothing about buffers.
	for try in 1 2 3; do
		must wait_until target 60 "awk '\$1 == \"reserved\" { exit \$2 > $reserved }' $port/memory"
		must wait_until target 60 "$waiting"
		((++session))
		output=$(on c1 "hcablk-peer session $target_address 7744 $(request 2 2 16 0 1 $session 1) $(message 2 0 0 4096 1) wait")
		[[ $output != established* ]] || break
		echo "# round $n, try $try: no connection: $output"
	done
	# The target's message may get lost, since it ends the connection at once. The next round waits for the end of the
	# session.
	[[ $'\n'$output$'\n' != *$'\n'disconnected$'\n'* ]] || continue
	echo "# round $n: $output"
	break
done
same "each of $rounds sessions whose RDMA READ fails ends while another waits for buffers" "$rounds" "$n"
# The log contains at most ten of these lines in five seconds.
failed=$(on target "dmesg | grep -c 'ended: queue 0: .* failed: .*(tag 7, generation 9, key 0x1234)'")
less "the target's log gives the failed RDMA READ as the reason for most" $((rounds / 2)) "$failed"
must on c2 'killall -q -INT fio; true'
join load || true
same "the other session has no errors" 0 "$(stat_of c2 $initiator/vol1 errors)"
check "no session of the first host is left" wait_until target 60 "! grep -q $(host_id c1) $target/volumes/vol1/clients"
