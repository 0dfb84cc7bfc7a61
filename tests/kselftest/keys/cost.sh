#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: keys cost one more connection request for each session, and none for each queue pair.
# turn: 23
# takes: 15
# guests: target c1
# skips: siw

. "${0%/*}/../lib/lib.sh"

[ "$rdma" != siw ] || skip "iWARP's connection manager counts nothing"
messages=/sys/class/infiniband/$rdma_link/ports/1/cm_tx_msgs

# sent GUEST: connection requests, replies, and rejects that it has sent, in one line
sent() {
	on "$1" "cat $messages/req $messages/rep $messages/rej" | tr '\n' ' '
}

# cost QUEUES POLLED: what connecting so many queue pairs takes of the initiator's requests, the target's replies and rejects, in
# $took, and how many queue pairs there were, in $pairs.
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
	same "by names: $shape: a request and a reply for each queue pair" "$pairs $pairs 0" "$took"
	by_names[$shape]=$pairs
done
must on target 'hcablk target unexport vol1'

use_keys c1
export_volume vol1 "$drive" c1
for shape in $shapes; do
	cost "${shape%.*}" "${shape#*.}"
	same "by keys: $shape: as many queue pairs" "${by_names[$shape]}" "$pairs"
	same "by keys: $shape: one request more, which a challenge rejects" "$((pairs + 1)) $pairs 1" "$took"
done
