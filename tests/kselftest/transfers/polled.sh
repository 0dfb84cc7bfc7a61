#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: polled I/O raises no interrupts, carries the right data, ends even if nobody polls any more, and fails and unloads like other I/O.
# tier: heart
# turn: 7
# takes: 40
# waits: yes
# timeout: 600

. "${0%/*}/../lib/lib.sh"

# since NAME: prints how far a counter of vol1 has grown since `begin`.
declare -A before
begin() {
	local name
	for name in events polled reads writes errors; do
		before[$name]=$(stat_of c1 $initiator/vol1 $name)
	done
}
since() {
	echo $(($(stat_of c1 $initiator/vol1 "$1") - ${before[$1]}))
}

# fio's options for polled I/O.
poll="--ioengine=io_uring --hipri=1 --direct=1"

# polled_fio OPTIONS
polled_fio() {
	ON_SECONDS=100 on c1 "fio --output-format=terse --terse-version=3 --filename=$device $poll $*"
}

export_volume vol1 "$drive" c1
connect c1 vol1 --queues 1
same "without poll queues the disk offers no polled I/O" 0 "$(on c1 "cat /sys/block/$disk/queue/io_poll")"
disconnect c1 vol1

connect c1 vol1 --queues 1 --poll-queues 1
same "with poll queues the disk offers polled I/O" 1 "$(on c1 "cat /sys/block/$disk/queue/io_poll")"
same "poll queues are hardware queues" 2 "$(on c1 "ls /sys/block/$disk/mq | wc -l")"
same "poll queues have queue pairs" 3 "$(queue_pairs c1)"

# The only events are those of the other queue: a keep-alive now and then.
for how in "--rw=randread --iodepth=1 --bs=4k" "--rw=randwrite --iodepth=8 --bs=4k" "--rw=randread --iodepth=32 --bs=16k"; do
	begin
	n=$(few 300)
	check "polled I/O succeeds: $how" polled_fio "--name=p --size=64m $how --number_ios=$n"
	ended=$(($(since reads) + $(since writes)))
	less "all polled requests ended" $((n - 1)) "$ended"
	less "responses to polled requests were polled for" $((n - 1)) "$(since polled)"
	less "polled requests raised no interrupts" $(($(since events) * 4)) "$n"
done
begin
check "other I/O works next to polled I/O" fio c1 "--name=o --filename=$device --rw=randread --bs=4k --size=64m --iodepth=4 --number_ios=$(few 200)"
same "other I/O is not polled" 0 "$(since polled)"
disconnect c1 vol1

# Requests of both kinds, and more pollers than queues. A poller occupies its processor.
connect c1 vol1 --poll-queues 1 --queue-depth 16
ON_SECONDS=100 spawn other c1 "fio --name=v --filename=$device --direct=1 --ioengine=libaio --rw=randrw --bsrange=4k-64k --iodepth=16 \
	--offset=512M --size=$(few 2)M --verify=crc32c --verify_fatal=1 > /tmp/load 2>&1"
check "polled I/O reads what polled I/O wrote" polled_fio "--name=v --rw=randrw --bsrange=512-128k --blockalign=512 \
	--iodepth=16 --numjobs=2 --size=$(few 2)M --offset_increment=64M --verify=crc32c --verify_fatal=1"
check "other I/O at the same time reads what it wrote" joined other c1
begin
check "the disk connects without remote invalidation" on c1 "hcablk disconnect vol1 &&
	hcablk connect $target_address vol1 --poll-queues 2 --no-remote-invalidate --small-read 0 --small-write 0 --eager-write 0"
check "polled I/O invalidates its keys itself" polled_fio "--name=v --rw=randrw --bs=16k --iodepth=16 --size=$(few 2)M --verify=crc32c --verify_fatal=1"
same "no request failed" 0 "$(since errors)"
disconnect c1 vol1

# The poller is stopped while its requests are in a slow drive: they end nevertheless, and the connection stays.
must on target 'modprobe null_blk nr_devices=0 && mkdir /sys/kernel/config/nullb/slow && cd /sys/kernel/config/nullb/slow &&
	echo 1024 > size && echo 2 > irqmode && echo 700000000 > completion_nsec && echo 1 > power'
export_volume slow /dev/slow c1
connect c1 slow --queues 1 --poll-queues 1 --io-timeout 3
spawn stopped c1 "exec fio --name=s --filename=$device --thread=1 $poll --rw=randread --bs=4k --iodepth=8 --time_based --runtime=600 > /tmp/load 2>&1"
must wait_until c1 30 "[ \$(awk '{ print \$1 }' /sys/block/$disk/stat) -ge 8 ]"
must on c1 'killall -STOP fio'
check "requests end without a poller" wait_until c1 30 "[ \$(awk '{ print \$1 }' /sys/block/$disk/inflight) = 0 ]"
same "a missing poller does not end the connection" live "$(on c1 "cat $initiator/slow/state")"
must on c1 'killall -CONT fio'
stat=$(on c1 "awk '{ print \$1 }' /sys/block/$disk/stat")
check "a poller that continues gets its requests" wait_until c1 30 "[ \$(awk '{ print \$1 }' /sys/block/$disk/stat) -ge $((stat + 16)) ]"
must on c1 'killall -KILL fio'
join stopped
check "the disk disconnects after its poller was killed" wait_until c1 30 'hcablk disconnect --if-exists slow'

# The connection is lost while a program polls.
load="--name=l --thread=1 $poll --rw=randrw --bs=16k --iodepth=8 --time_based --runtime=300 --norandommap"
connect c1 vol1 --poll-queues 2 --io-timeout 4
ON_SECONDS=330 spawn one c1 "fio --filename=$device $load 2>&1"
must wait_until c1 60 "awk '{ exit !(\$1 > 20 && \$5 > 20) }' /sys/block/$disk/stat"
must on target 'hcablk target unexport --force vol1'
ends_within one 40000 "volume withdrawn"
check "the disk is removed after the volume was withdrawn" wait_until c1 30 "grep -q failed $initiator/vol1/state && [ ! -e /sys/block/$disk ]"
must on c1 'hcablk disconnect vol1'
export_volume vol1 "$drive" c1
connect c1 vol1 --poll-queues 2 --io-timeout 4
ON_SECONDS=330 spawn two c1 "fio --filename=$device $load 2>&1"
must wait_until c1 60 "awk '{ exit !(\$1 > 20 && \$5 > 20) }' /sys/block/$disk/stat"
must vm link-down target 0
ends_within two 40000 "cable cut"
check "the disk is removed after the cut" wait_until c1 30 "grep -q failed $initiator/vol1/state && [ ! -e /sys/block/$disk ]"
check "the disk is disconnected after the cut" on c1 'hcablk disconnect vol1'
same "no queue pair is left" 0 "$(queue_pairs c1)"
check "the module unloads" on c1 'rmmod hcablk hcablk_core'
must vm link-up target 0
must wait_until c1 60 "ping -c 1 -W 1 $target_address"
