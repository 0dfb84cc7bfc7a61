#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: requests that were under way when a path was lost are issued again in the order in which they were first issued.
# turn: 13
# takes: 20
# waits: yes
# skips: siw

. "${0%/*}/../lib/lib.sh"
. "${0%/*}/../lib/multi.sh"

[ "$rdma" != siw ] || skip "TCP notices a silent peer only when a request gets no response in time"

tracing=/sys/kernel/tracing
two_cards 1 target c1
target_address=10.77.1.1
must on target "echo 'write through' > /sys/block/\$(basename \$(readlink -f $drive))/queue/write_cache"
export_volume vol1 "$drive" c1
# As many tags as requests, so that tags are used in disorder.
requests=16
connect c1 vol1 --ctrl-loss-tmo 600 --keep-alive-tmo $((1 * slow)) --queues 1 --poll-queues 0 --queue-depth $requests
# A scheduler would order the first issue in its own way.
must on c1 "echo none > /sys/block/$disk/queue/scheduler"

# sent: prints tags and sectors of the requests that were sent to the target, in order.
sent() {
	on c1 "cat $tracing/trace" | sed -nE 's/.*hcablk_sent: .*tag=([0-9]+).*sector=([0-9]+).*/\1 \2/p'
}
# With iostats the order is that of the block layer's times; without, the order of issue.
for iostats in 1 0; do
	what="iostats $iostats"
	must on c1 "echo $iostats > /sys/block/$disk/queue/iostats && echo > $tracing/trace && echo 1 > $tracing/events/hcablk/hcablk_sent/enable"
	ON_SECONDS=300 spawn load c1 "fio --name=v --filename=$device --direct=1 --ioengine=libaio --rw=randwrite --bssplit=4k/70:128k/30 --size=900m \
		--iodepth=$requests --rate_iops=2000 --time_based --runtime=600 --randrepeat=0"
	must wait_until c1 60 "[ \$(grep -c 'hcablk_sent:' $tracing/trace) -gt 100 ]"
	must on target 'modprobe sch_netem && tc qdisc replace dev path1 root netem limit 10000 loss 100%'
	must disk_is c1 vol1 queueing
	must netem target path1
	must disk_is c1 vol1 live
	must on c1 "echo 0 > $tracing/events/hcablk/hcablk_sent/enable"
	must on c1 'killall -INT fio'
	join load
	# Large requests take longer, so that requests end in disorder. Each sector is written once, except by reissued requests.
	trace=$(sent)
	again=$(awk 'seen[$2]++ == 1' <<< "$trace")
	first=$(awk 'NR == FNR { twice[$2] = 1; next } $2 in twice && !seen[$2]++' <(echo "$again") <(echo "$trace"))
	less "$what: requests were issued again" 1 "$(wc -l <<< "$again")"
	tags=$(awk '{ print $1 }' <<< "$first")
	echo "# $what: $(wc -l <<< "$again") requests, $([ "$tags" = "$(sort -n <<< "$tags")" ] || echo "not ")in the order of their tags"
	same "$what: the reissue order is the order of the first issue" "$first" "$again"
done
same "no request has failed" 0 "$(stat_of c1 $initiator/vol1 errors)"
disconnect c1 vol1
