#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: when a port of the target's RDMA device goes down, the sessions over that port end at once, and no others do.
# turn: 16
# takes: 20
# waits: yes
# skips: siw

. "${0%/*}/../lib/lib.sh"
. "${0%/*}/../lib/multi.sh"

[ "$rdma" = rxe ] || skip "the test takes the carrier from soft-RoCE's card"

tracing=/sys/kernel/tracing
two_cards 1 target c1
target_address=10.77.1.1
must on target "echo 'write through' > /sys/block/\$(basename \$(readlink -f $drive))/queue/write_cache"
export_volume vol1 "$drive" --wwid=6f0c2b62-5f5e-4c0e-9d57-0b8f3e9b0a71 c1
# The target would notice the silence only after two minutes.
connect c1 vol1 --ctrl-loss-tmo 600 --keep-alive-tmo 60 --queues 2
add_path c1 vol1 1 10.77.2.1
must disk_is c1 vol1 live
same "the target has two sessions" 2 "$(on target "grep -c . $target/volumes/vol1/clients")"
must on target "echo 1 > $tracing/events/hcablk_target/hcablk_target_session/enable"

# down N: takes the port down for the N-th time, and checks that the session over it ends. Counts in $by_port the ends that the
# port's event caused: the card refuses what is sent just then, and soft-RoCE may end the queue pair before it reports the port.
down() {
	local took ended
	# The other end of the card's link goes down, so that the card has no carrier.
	must on target "echo > $tracing/trace && echo down > $tracing/trace_marker && ip link set port1 down"
	check "the session over that port ends" wait_until target 60 "[ \$(dmesg | grep -c 'session .* ended: ') = $1 ]"
	ended=$(on target "dmesg | grep 'session .* ended: ' | tail -n 1")
	echo "# $ended"
	took=$(on target "awk '
		{ for (i = 1; i <= NF; i++) if (\$i ~ /^[0-9]+\.[0-9]+:\$/) at = \$i * 1000 }
		/tracing_mark_write: down/ { down = at }
		/hcablk_target_session:.*state=ending/ && down { print int(at - down); exit }' $tracing/trace")
	echo "# $took ms after the command to take the card down"
	# Silence would be noticed only after two minutes.
	within "the session ends long before its silence is noticed" "$took" $((20000 * slow))
	check "the target has one client left" wait_until target 60 "[ \$(grep -c . $target/volumes/vol1/clients) = 1 ]"
	check "the other path serves" on c1 "dd if=$device of=/dev/null bs=4k count=4 iflag=direct"
	must on target "ip link set port1 up"
	check "the path comes back" disk_is c1 vol1 live
	[[ $ended != *"the RDMA port went down"* ]] || by_port=$((by_port + 1))
}

by_port=0
for try in 1 2 3; do
	[ $by_port = 1 ] || down $try
done
same "the port's event ended at least one session in three" 1 $by_port
same "the client has no errors" 0 "$(stat_of c1 $initiator/vol1 errors)"
same "the target has two sessions again" 2 "$(on target "grep -c . $target/volumes/vol1/clients")"
must on target "echo 0 > $tracing/events/enable && echo > $tracing/trace"
disconnect c1 vol1
