#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: requests that are issued together share a doorbell, answers that come together a doorbell and a completion, and data, errors and ends are as ever.
# tier: heart
# turn: 13
# takes: 20
# timeout: 480

. "${0%/*}/../lib/lib.sh"

volume_stats=$target/volumes/fast
begin() {
	mapfile -t was < <(counts)
}
# counts: of the client's device and of the volume
counts() {
	stats_of c1 $initiator/fast reads writes doorbells work_requests
	stats_of target $volume_stats doorbells work_requests reports
}
# end: how far the counters have gone since `begin`
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

# A drive that answers at once, so that answers come while the target looks at requests.
must on target 'modprobe null_blk nr_devices=0 && mkdir /sys/kernel/config/nullb/fast && cd /sys/kernel/config/nullb/fast &&
	echo 64 > size && echo 1 > memory_backed && echo 0 > irqmode && echo 1 > power'
export_volume fast /dev/fast c1
# Eager writes are answered by fewer messages: see transfers/eager-writes.
connect c1 fast --queues 1 --eager-write 0
n=$(few 320)

all_bells=0
all_work=0
all_reports=0
for scheduler in none mq-deadline; do
	must on c1 "echo $scheduler > /sys/block/$disk/queue/scheduler"
	for how in "libaio --rw=randread" "io_uring --rw=randwrite"; do
		begin
		check "16 at a time, $scheduler: $how" on c1 "fio --name=d --filename=$device --direct=1 --bs=4k --iodepth=32 \
			--iodepth_batch=16 --iodepth_batch_complete_min=16 --number_ios=$n --size=64m --ioengine=$how"
		end
		# The scheduler merges a few.
		less "$how: as many requests as meant" $((n * 9 / 10)) "$requests"
		less "$how: some share a message" $((bells - 1)) "$work"
		less "$how: a doorbell is for four of them and more" $((bells * 4)) "$requests"
		less "$how: each is answered" $((requests - 1)) "$far_work"
		all_bells=$((all_bells + far_bells))
		all_work=$((all_work + far_work))
		all_reports=$((all_reports + reports))
	done
done
# How many depends on how far the target is behind: on a slow kernel, hardly ever.
less "answers that come together share doorbells" "$all_bells" "$all_work"
if [ "$rdma" = rxe ]; then
	# The last report comes with the next request.
	less "those of one doorbell are reported by one completion" "$all_reports" $((all_bells + 5))
	less "all are" $((all_bells - 5)) "$all_reports"
fi
begin
check "one at a time" on c1 "fio --name=d --filename=$device --direct=1 --bs=4k --iodepth=1 --number_ios=$(few 200) \
	--size=64m --ioengine=libaio --rw=randread"
end
less "each has its doorbell" $((requests - 1)) "$bells"
disconnect c1 fast

# Of all kinds, with few credits, so that what was announced is turned back in the middle of a plug.
must on target 'hcablk target unlisten --all && hcablk target listen --queue-credits 5'
connect c1 fast --queue-depth 64
check "with fewer credits than are wanted" fio c1 "--name=v --filename=$device --rw=randrw --bsrange=512-24k --blockalign=512 \
	--iodepth=48 --iodepth_batch=24 --numjobs=2 --size=$(few 2)M --offset_increment=16M --verify=crc32c --verify_fatal=1"
less "they were waited for" 0 "$(stat_of c1 $initiator/fast credit_waits)"
check "memory of every shape" on c1 "hcablk-scatter $device random 28 4"
disconnect c1 fast

# The connection goes while many are being issued.
connect c1 fast --io-timeout 5
ON_SECONDS=330 spawn load c1 "fio --name=l --filename=$device --direct=1 --ioengine=libaio --rw=randrw --bs=4k --iodepth=64 \
	--iodepth_batch=32 --numjobs=2 --time_based --runtime=300 --norandommap 2>&1"
must wait_until c1 30 "awk '{ exit !(\$1 > 100 && \$5 > 100) }' /sys/block/$disk/stat"
must on target 'hcablk target unexport --force fast'
ends_within load 40000 "volume withdrawn"
check "the disk goes" wait_until c1 30 "grep -q failed $initiator/fast/state && [ ! -e /sys/block/$disk ]"
check "and the module" on c1 'hcablk disconnect fast && rmmod hcablk hcablk_core'
same "no queue pair is left" 0 "$(queue_pairs c1)"
