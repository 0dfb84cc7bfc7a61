#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: a path without credits is not chosen while another path has credits, with every policy.
# turn: 8
# takes: 40
# timeout: 300

. "${0%/*}/../lib/lib.sh"
. "${0%/*}/../lib/multi.sh"

two_cards 1 target c1
# The target grants few credits on the first path.
must on target 'hcablk target unlisten --all && hcablk target listen --address 10.77.1.1 --queue-credits 2 &&
	hcablk target listen --address 10.77.2.1'
export_volume vol1 "$drive" c1
target_address=10.77.1.1
connect c1 vol1 --queues 1
add_path c1 vol1 1 10.77.2.1
check "the second path is live" path_is c1 vol1 1 live

for policy in numa round-robin queue-depth; do
	must on c1 "echo $policy > $initiator/vol1/policy"
	first=$(sent_by c1 path1) second=$(sent_by c1 path2)
	check "$policy: fio reads with many requests at a time" fio c1 "--name=v --filename=$device --rw=randread --bs=4k --iodepth=32 --size=16M"
	first=$(($(sent_by c1 path1) - first)) second=$(($(sent_by c1 path2) - second))
	echo "# $policy: packets over the first path: $first, over the second: $second"
	less "$policy: most requests use the path with credits" $((first * 2)) "$second"
done
same "the client has no errors" "0 0" "$(stat_of c1 $initiator/vol1 errors) $(stat_of c1 $initiator/vol1 protocol_errors)"
disconnect c1 vol1
