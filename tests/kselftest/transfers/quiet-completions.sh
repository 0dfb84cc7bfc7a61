#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: with many requests in flight few responses interrupt, and quiet requests do not wait for solicited ones in a slow drive.
# tier: heart
# turn: 3
# takes: 40
# skips: siw
# alone: it counts events of a burst and of a silence
# timeout: 480

. "${0%/*}/../lib/lib.sh"

[ "$rdma" != siw ] || skip "on iWARP every completion raises an event"

# since NAME: prints how far a counter has grown since $before.
since() {
	local now
	now=$(count "$1" "$(on c1 "cat $initiator/$volume/stats")")
	# Used in arithmetic, the name of a missing counter would end only a subshell: print the name, which fails the check.
	[[ $now = no_* ]] && echo "$now" || echo $((now - $(count "$1" "$before")))
}

begin() {
	before=$(on c1 "cat $initiator/$volume/stats")
}

# slow_drive NAME MILLISECONDS: makes /dev/NAME, which takes this time for each request, for many at a time.
slow_drive() {
	must on target "mkdir /sys/kernel/config/nullb/$1 && cd /sys/kernel/config/nullb/$1 && echo 1024 > size &&
		echo $(($2 ? 2 : 1)) > irqmode && echo $(($2 * 1000000)) > completion_nsec && echo 1024 > hw_queue_depth && echo 1 > power"
}

must on target 'modprobe null_blk nr_devices=0'
must on c1 'modprobe hcablk'

# 64 requests are always in flight: the drive takes longer than issuing them.
volume=slow
slow_drive slow $((300 * slow))
export_volume slow /dev/slow c1
many="--name=m --direct=1 --ioengine=libaio --rw=randread --bs=4k --iodepth=64 --iodepth_batch=16 --iodepth_batch_complete_min=16"
for write in "" "--rw=randwrite"; do
	connect c1 slow --queues 1
	begin
	n=$(few 1920)
	check "64 requests at a time succeed${write:+, writes}" fio c1 "$many --filename=$device --number_ios=$n $write"
	ended=$(($(since reads) + $(since writes)))
	less "all requests ended" $((n - 1)) "$ended"
	# The first 64 requests are not quiet: too few are in flight then.
	less "most requests were quiet" $(((ended - 64) * 9 / 10)) "$(since quiet)"
	less "at most one response in six interrupted" $(($(since events) * 6)) $((ended + 120))
	disconnect c1 slow
done

connect c1 slow --queues 1 --batch-upper 0
begin
check "64 requests at a time succeed with batching switched off" fio c1 "$many --filename=$device --number_ios=$(few 320)"
same "no request was quiet" "0 0 0" "$(since quiet) $(since reaps) $(since guards)"
disconnect c1 slow

# The solicited requests wait for a hung drive; the quiet ones after them do not wait for them.
volume=mixed
slow_drive fast 0
must on target "modprobe dm_mod && echo '0 131072 linear /dev/fast 131072' | dmsetup create gate && dmsetup mknodes &&
	printf '0 131072 linear /dev/fast 0\n131072 131072 linear /dev/mapper/gate 0\n' | dmsetup create mixed"
export_volume mixed "/dev/$(on target 'dmsetup info -c --noheadings -o blkdevname mixed')" c1
connect c1 mixed --queues 1 --batch-upper 4 --batch-lower 2 --io-timeout 120
must on target 'dmsetup suspend --nolockfs gate'
begin
# Not adjacent: they must not be merged.
spawn slow c1 "fio --name=s --filename=$device --direct=1 --ioengine=libaio --rw=read:60k --bs=4k --offset=96m --size=1m --number_ios=8 --iodepth=8 \
	> /tmp/load 2>&1"
must wait_until c1 30 "[ \$(awk '{ print \$1 }' /sys/block/$disk/inflight) = 8 ]"
n=$(few 50)
check "bursts end next to slow requests" fio c1 "--name=b --filename=$device --rw=randread --bs=4k --size=32m --iodepth=32 \
	--iodepth_batch=32 --iodepth_batch_complete_min=32 --number_ios=$((n * 32))"
same "the bursts did not wait for the slow requests" 8 "$(on c1 "awk '{ print \$1 }' /sys/block/$disk/inflight")"
less "some requests were quiet" 0 "$(since quiet)"
less "the timer found responses" 0 "$(since guards)"
must on target 'dmsetup resume gate'
check "the slow requests end when their drive continues" joined slow c1
disconnect c1 mixed
must on target 'hcablk target unexport mixed && dmsetup remove mixed && dmsetup remove gate'
