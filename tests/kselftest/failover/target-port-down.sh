#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: when a port of the target's RDMA device goes down, the sessions by that port end at once, and no others.
# turn: 16
# takes: 20
# waits: yes
# skips: siw

. "${0%/*}/../lib/lib.sh"
. "${0%/*}/../lib/multi.sh"

[ "$rdma" = rxe ] || skip "it takes the carrier of soft-RoCE's card"

tracing=/sys/kernel/tracing
two_cards 1 target c1
target_address=10.77.1.1
must on target "echo 'write through' > /sys/block/\$(basename \$(readlink -f $drive))/queue/write_cache"
export_volume vol1 "$drive" --wwid=6f0c2b62-5f5e-4c0e-9d57-0b8f3e9b0a71 c1
# By silence the target would notice after two minutes.
connect c1 vol1 --ctrl-loss-tmo 600 --keep-alive-tmo 60 --queues 2
add_path c1 vol1 1 10.77.2.1
must disk_is c1 vol1 live
same "two sessions are there" 2 "$(on target "grep -c . $target/volumes/vol1/clients")"
must on target "echo 1 > $tracing/events/hcablk_target/hcablk_target_session/enable"

# down N: the port goes down, the N-th time, and the session by it ends. Counts in $by_port whether it did so because of the port:
# what is sent just then is refused by the card, for which soft-RoCE ends the queue pair before it tells of the port.
down() {
	local took ended
	# The other end of the card's link is down, so that the card has no carrier.
	must on target "echo > $tracing/trace && echo down > $tracing/trace_marker && ip link set port1 down"
	check "the session by that port ends" wait_until target 60 "[ \$(dmesg | grep -c 'session .* ended: ') = $1 ]"
	ended=$(on target "dmesg | grep 'session .* ended: ' | tail -n 1")
	echo "# $ended"
	took=$(on target "awk '
		{ for (i = 1; i <= NF; i++) if (\$i ~ /^[0-9]+\.[0-9]+:\$/) at = \$i * 1000 }
		/tracing_mark_write: down/ { down = at }
		/hcablk_target_session:.*state=ending/ && down { print int(at - down); exit }' $tracing/trace")
	echo "# $took ms after the card has begun to be taken down"
	# Silence would be noticed after two minutes.
	within "by that, and not by its silence" "$took" $((20000 * slow))
	check "nothing of it is left" wait_until target 60 "[ \$(grep -c . $target/volumes/vol1/clients) = 1 ]"
	check "the other path serves" on c1 "dd if=$device of=/dev/null bs=4k count=4 iflag=direct"
	must on target "ip link set port1 up"
	check "the path comes back" disk_is c1 vol1 live
	[[ $ended != *"the RDMA port went down"* ]] || by_port=$((by_port + 1))
}

by_port=0
for try in 1 2 3; do
	[ $by_port = 1 ] || down $try
done
same "it says why, once in three times at least" 1 $by_port
same "nobody saw an error" 0 "$(stat_of c1 $initiator/vol1 errors)"
same "two sessions are there again" 2 "$(on target "grep -c . $target/volumes/vol1/clients")"
must on target "echo 0 > $tracing/events/enable && echo > $tracing/trace"
disconnect c1 vol1
