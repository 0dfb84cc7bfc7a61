#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: requests issued together share a doorbell, responses sent together share a doorbell and a completion, and data, errors and ends of disks are as without sharing.
# tier: heart
# turn: 13
# takes: 20
# timeout: 480

. "${0%/*}/../lib/lib.sh"

volume_stats=$target/volumes/fast
begin() {
	mapfile -t was < <(counts)
}
# counts: prints counters of the client's device and of the volume
counts() {
	stats_of c1 $initiator/fast reads writes doorbells work_requests
	stats_of target $volume_stats doorbells work_requests reports
}
# end: sets how far the counters have grown since `begin`
end() {
	local is
	mapfile -t is < <(counts)
	requests=$((is[0] + is[1] - was[0] - was[1]))
	bells=$((is[2] - was[2]))
	work=$((is[3] - was[3]))
	far_bells=$((is[4] - was[4]))
	far_work=$((is[5] - was[5]))
	reports=$((is[6] - was[6]))
	echo "# $requests requests: $bells doorbells for $work work requests, the target's $far_bells for $far_work, $reports reported" >&2
}

# A drive that completes at once, so that responses are ready while the target still handles requests.
must on target 'modprobe null_blk nr_devices=0 && mkdir /sys/kernel/config/nullb/fast && cd /sys/kernel/config/nullb/fast &&
	echo 64 > size && echo 1 > memory_backed && echo 0 > irqmode && echo 1 > power'
export_volume fast /dev/fast c1
# Eager writes share response messages: see transfers/eager-writes.
connect c1 fast --queues 1 --eager-write 0
n=$(few 320)

all_bells=0
all_work=0
all_reports=0
for scheduler in none mq-deadline; do
	must on c1 "echo $scheduler > /sys/block/$disk/queue/scheduler"
	for how in "libaio --rw=randread" "io_uring --rw=randwrite"; do
		begin
		check "16 requests at a time succeed, $scheduler: $how" on c1 "fio --name=d --filename=$device --direct=1 --bs=4k --iodepth=32 \
			--iodepth_batch=16 --iodepth_batch_complete_min=16 --number_ios=$n --size=64m --ioengine=$how"
		end
		# The scheduler merges a few.
		less "$how: all requests were made" $((n * 9 / 10)) "$requests"
		less "$how: each doorbell is for at least one work request" $((bells - 1)) "$work"
		less "$how: four or more requests share a doorbell" $((bells * 4)) "$requests"
		less "$how: each request is answered" $((requests - 1)) "$far_work"
		all_bells=$((all_bells + far_bells))
		all_work=$((all_work + far_work))
		all_reports=$((all_reports + reports))
	done
done
# How many depends on how far behind the target is: on a slow kernel, hardly any.
less "responses sent together share doorbells" "$all_bells" "$all_work"
if [ "$rdma" = rxe ]; then
	# The completion of the last response is reported with the next request.
	less "responses of one doorbell are reported by one completion" "$all_reports" $((all_bells + 5))
	less "all responses are reported" $((all_bells - 5)) "$all_reports"
fi
begin
check "one request at a time succeeds" on c1 "fio --name=d --filename=$device --direct=1 --bs=4k --iodepth=1 --number_ios=$(few 200) \
	--size=64m --ioengine=libaio --rw=randread"
end
less "single requests have a doorbell each" $((requests - 1)) "$bells"
disconnect c1 fast

# Requests of all kinds with few credits: some requests of a plug are turned back.
must on target 'hcablk target unlisten --all && hcablk target listen --queue-credits 5'
connect c1 fast --queue-depth 64
check "data is right with fewer credits than requests" fio c1 "--name=v --filename=$device --rw=randrw --bsrange=512-24k --blockalign=512 \
	--iodepth=48 --iodepth_batch=24 --numjobs=2 --size=$(few 2)M --offset_increment=16M --verify=crc32c --verify_fatal=1"
less "requests waited for credits" 0 "$(stat_of c1 $initiator/fast credit_waits)"
check "memory of every shape is written and read right" on c1 "hcablk-scatter $device random 28 4"
disconnect c1 fast

# The connection is lost while many requests are being issued.
connect c1 fast --io-timeout 5
ON_SECONDS=330 spawn load c1 "fio --name=l --filename=$device --direct=1 --ioengine=libaio --rw=randrw --bs=4k --iodepth=64 \
	--iodepth_batch=32 --numjobs=2 --time_based --runtime=300 --norandommap 2>&1"
must wait_until c1 30 "awk '{ exit !(\$1 > 100 && \$5 > 100) }' /sys/block/$disk/stat"
must on target 'hcablk target unexport --force fast'
ends_within load 40000 "volume withdrawn"
check "the disk is removed" wait_until c1 30 "grep -q failed $initiator/fast/state && [ ! -e /sys/block/$disk ]"
check "the module unloads" on c1 'hcablk disconnect fast && rmmod hcablk hcablk_core'
same "no queue pair is left" 0 "$(queue_pairs c1)"
