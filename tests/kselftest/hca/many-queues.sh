#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: a disk with 64 hardware queues transfers data by all of them, and when its connection is lost and restored the initiator waits for as few RCU grace periods as with two queues, as it does when the disk is removed.
# turn: 15
# takes: 150
# guests: hca-wide
# timeout: 900
# skips: debug

. "${0%/*}/../lib/lib.sh"
. "${0%/*}/../lib/hca.sh"

[ "$slow" = 1 ] || skip "the debug kernel has no probes"

hca_in hca-wide
hca_pair
export_volume vol1 "$drive" c1
tracing=/sys/kernel/tracing
must on c1 "echo 'p:normal synchronize_rcu' > $tracing/kprobe_events && echo 'p:expedited synchronize_rcu_expedited' >> $tracing/kprobe_events &&
	for probe in normal expedited; do echo stacktrace > $tracing/events/kprobes/\$probe/trigger; done; echo 8192 > $tracing/buffer_size_kb"

# lose: interrupts the connection until the disk waits for it, and restores it.
lose() {
	knob hca1 port 0
	check "$1: the connection is lost" wait_until c1 60 "[ \$(cat $initiator/vol1/state) = queueing ]"
	knob hca1 port 1
	check "$1: the connection is restored" wait_until c1 60 "[ \$(cat $initiator/vol1/state) = live ]"
}

# grace_periods: prints how often the initiator has waited for a grace period since the trace was cleared, and writes the number of waits for
# each function of the initiator that has waited.
grace_periods() {
	on c1 "awk '/<stack trace>/ { if (own) n[place]++; own = 0; place = \"\" }
		/^ => / { if (/initiator/ && !own) place = substr(\$2, 1, 120); if (/initiator/) own = 1 }
		END { if (own) n[place]++; for (p in n) { print n[p] p > \"/tmp/places\"; all += n[p] } print all + 0 }' $tracing/trace"
}

# trace 0|1: stops the trace of grace periods, or begins a new one.
trace() {
	[ "$1" = 0 ] || must on c1 "echo > $tracing/trace"
	must on c1 "for probe in normal expedited; do echo $1 > $tracing/events/kprobes/\$probe/enable; done"
}

# waits QUEUES POLLED: connects a disk, loses its connection under load, and removes it; sets the numbers of grace periods: $loss, $removal.
waits() {
	local what="$(($1 + $2)) queues"
	connect c1 vol1 --ctrl-loss-tmo 600 --keep-alive-tmo 2 --queues "$1" --poll-queues "$2" --queue-depth 16 --max-io-kib 64
	same "$what: the disk has a hardware queue for each" $(($1 + $2)) "$(on c1 "ls /sys/block/$disk/mq | wc -l")"
	ON_SECONDS=400 spawn load c1 "fio --output-format=terse --name=v --filename=$device --direct=1 --ioengine=libaio --rw=randrw --bs=4k --iodepth=4 \
		--numjobs=32 --cpus_allowed=0-31 --cpus_allowed_policy=split --size=256k --offset_increment=1M --verify=crc32c --verify_fatal=1 --time_based --runtime=6 > /dev/null"
	must wait_until c1 60 "awk '{ exit !(\$1 + \$5 > 500) }' /sys/block/$disk/stat"
	trace 1
	lose "$what"
	trace 0
	check "$what: the data written over the loss is read back" join load
	loss=$(grace_periods)
	on c1 "sed 's/^/# loss: /' /tmp/places; rm -f /tmp/places"
	trace 1
	disconnect c1 vol1
	trace 0
	removal=$(grace_periods)
	on c1 "sed 's/^/# removal: /' /tmp/places; rm -f /tmp/places"
}

waits 2 0
few_loss=$loss few_removal=$removal
waits 32 32
echo "# grace periods of a loss: $few_loss with 2 queues, $loss with 64; of a removal: $few_removal and $removal"
less "the loss of 2 queues is traced" 0 "$few_loss"
less "the loss of 64 queues waits for no more grace periods than that of 2" "$loss" $((few_loss + 6))
less "the removal of 2 queues is traced" 0 "$few_removal"
less "the removal of 64 queues waits for no more grace periods than that of 2" "$removal" $((few_removal + 6))
must on c1 "for probe in normal expedited; do echo '!stacktrace' > $tracing/events/kprobes/\$probe/trigger; done; echo > $tracing/kprobe_events"
