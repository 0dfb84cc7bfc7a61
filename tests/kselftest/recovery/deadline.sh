#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: a request's deadline counts from its first issue: when issued again it has the time that is left, and its full time once that has expired.
# turn: 9
# takes: 30
# waits: yes
# skips: siw

. "${0%/*}/../lib/lib.sh"

[ "$rdma" != siw ] || skip "TCP notices a silent peer only when a request gets no response in time"

tracing=/sys/kernel/tracing
# Seconds
timeout=$((20 * slow))
must on target "echo 'write through' > /sys/block/\$(basename \$(readlink -f $drive))/queue/write_cache
	modprobe dm_mod && echo '0 65536 linear $drive 0' | dmsetup create gate && dmsetup mknodes"
export_volume v /dev/mapper/gate --wwid=6f0c2b62-5f5e-4c0e-9d57-0b8f3e9b0a44 c1
connect c1 v --ctrl-loss-tmo 600 --keep-alive-tmo $((1 * slow)) --io-timeout $timeout --connect-timeout $((40 * slow)) --queues 1
pairs=$(queue_pairs c1)
must on c1 "echo 1 > $tracing/events/hcablk/hcablk_session/enable && echo 1 > $tracing/events/hcablk/hcablk_queue/enable"

# A write waits for the drive for more than half of its time. Then its connection is lost, and the drive continues.
must on target 'dmsetup suspend --nolockfs gate'
spawn held c1 "dd if=/dev/urandom of=$device bs=64k count=1 oflag=direct"
must wait_until c1 30 "[ \$(awk '{ print \$2 }' /sys/block/$disk/inflight) = 1 ]"
end=$(on c1 "awk '{ print int(\$1) + $timeout * 6 / 10 }' /proc/uptime")
must wait_until c1 60 "[ \$(cut -d. -f1 /proc/uptime) -ge $end ]"
must vm link-down target 0
must wait_until c1 60 "[ \$(cat $initiator/v/state) = queueing ]"
must on target 'dmsetup resume gate'
must wait_until target 30 "awk '{ exit \$1 + \$2 }' /sys/block/dm-\$(dmsetup info -c --noheadings -o minor gate)/inflight"
# The drive hangs again when the write is issued again.
must on target 'dmsetup suspend --nolockfs gate'
must vm link-up target 0
must wait_until c1 60 "[ \$(cat $initiator/v/state) = live ]"
check "the queue pair is replaced when the write's time has expired" wait_until c1 60 "[ \$(rdma resource show qp | grep -vc 'type GSI') -gt $pairs ]"
must on target 'dmsetup resume gate'
check "the write succeeds after the drive continues" join held
must wait_until c1 60 "[ \$(rdma resource show qp | grep -vc 'type GSI') = $pairs ]"
same "no request has failed" 0 "$(stat_of c1 $initiator/v errors)"
same "the write was issued three times" 2 "$(stat_of c1 $initiator/v retries)"

# Milliseconds from the second session to the first replacement of a queue pair.
waited=$(on c1 "awk '
	{ sub(/:\$/, \"\", \$0); for (i = 1; i <= NF; i++) if (\$i ~ /^[0-9]+\.[0-9]+:\$/) at = \$i * 1000 }
	/hcablk_session:.*state=live/ { live = at }
	/hcablk_queue:.*state=connecting/ && live { print int(at - live); exit }' $tracing/trace")
[ -n "$waited" ] || { on c1 "cat $tracing/trace" >&2; die "no queue pair is in the trace"; }
echo "# the write was issued again with $waited ms left of $((timeout * 1000)), to within the timer's second"
within "the write issued again has only the time that was left" "$waited" $((timeout * 700))
less "the time left is not zero" $((timeout * 200)) "$waited"
must on c1 "echo 0 > $tracing/events/enable && echo > $tracing/trace"
disconnect c1 v
must on target 'hcablk target unexport v && dmsetup remove gate'
