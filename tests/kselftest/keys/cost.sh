#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: keys cost one more connection request for each session, and none for each queue pair.
# turn: 23
# takes: 15
# guests: target c1
# skips: siw

. "${0%/*}/../lib/lib.sh"

[ "$rdma" != siw ] || skip "the connection manager of iWARP has no counters"
messages=/sys/class/infiniband/$rdma_link/ports/1/cm_tx_msgs

# sent GUEST: prints how many connection requests, replies and rejects it has sent, in one line
sent() {
	on "$1" "cat $messages/req $messages/rep $messages/rej" | tr '\n' ' '
}

# cost QUEUES POLLED: connects a disk with these queues; sets $took to the initiator's requests and the target's replies and
# rejects, and $pairs to the number of queue pairs.
cost() {
	local before after
	read -ra before <<< "$(sent c1) $(sent target)"
	connect c1 vol1 --queues "$1" --poll-queues "$2"
	read -ra after <<< "$(sent c1) $(sent target)"
	pairs=$(queue_pairs c1)
	took="$((after[0] - before[0])) $((after[4] - before[4])) $((after[5] - before[5]))"
	echo "# $pairs queue pairs: $took requests, replies, rejects" >&2
	disconnect c1 vol1
}

declare -A by_names
shapes="1.0 2.0 2.1 2.2"
export_volume vol1 "$drive" c1
for shape in $shapes; do
	cost "${shape%.*}" "${shape#*.}"
	same "without keys: $shape: a request and a reply for each queue pair" "$pairs $pairs 0" "$took"
	by_names[$shape]=$pairs
done
must on target 'hcablk target unexport vol1'

use_keys c1
export_volume vol1 "$drive" c1
for shape in $shapes; do
	cost "${shape%.*}" "${shape#*.}"
	same "with keys: $shape: as many queue pairs" "${by_names[$shape]}" "$pairs"
	same "with keys: $shape: one more request, which a challenge rejects" "$((pairs + 1)) $pairs 1" "$took"
done
