#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: while one volume's drive hangs, or its device is being opened, its counters are read without waiting, and hosts connect to other volumes.
# turn: 8
# takes: 50
# waits: yes
# timeout: 480

. "${0%/*}/../lib/lib.sh"

# at_once FILE: succeeds if the file is read while the drive completes no request. A request takes three seconds, so one may
# complete by chance.
at_once() {
	on target "for n in \$(seq $((5 * slow))); do
		before=\$(awk '{ print \$1 }' /sys/block/slow/stat)
		cat $1 > /dev/null || exit 1
		[ \$before != \$(awk '{ print \$1 }' /sys/block/slow/stat) ] || exit 0
	done
	exit 1"
}
# One request at a time, for three seconds each: the next requests wait in the kernel, asleep. null_blk fails requests after five
# seconds, so that a slow kernel gets more requests instead of longer ones.
must on target "modprobe null_blk nr_devices=0 && mkdir /sys/kernel/config/nullb/slow && cd /sys/kernel/config/nullb/slow &&
	echo 64 > size && echo 2 > irqmode && echo 3000000000 > completion_nsec && echo 1 > hw_queue_depth &&
	echo 1 > submit_queues && echo 1 > memory_backed && echo 1 > power"
export_volume slow /dev/slow c1
export_volume vol1 "$drive" c1 c2
connect c1 slow --queues 1 --io-timeout $((100 * slow))
slow_disk=$disk
# The requests are too far from each other to be merged.
spawn load c1 "fio --name=load --filename=$device --direct=1 --ioengine=libaio --rw=read:64k --bs=4k \
	--iodepth=$((10 * slow)) --size=${slow}M --io_size=$((40 * slow))k"
must wait_until target 60 "awk '{ exit !(\$9 > 0) }' /sys/block/slow/stat"
must wait_until c1 60 "awk '{ exit !(\$9 > 4) }' /sys/block/$slow_disk/stat"

check "the counters are read while requests wait for the drive" at_once $target/volumes/slow/stats
check "the times are read while requests wait for the drive" at_once $target/volumes/slow/times
# Programs that read both all the time.
must on target "touch /tmp/look && for file in stats times; do
	(while [ -e /tmp/look ]; do cat $target/volumes/slow/\$file; done > /dev/null 2>&1 &); done"
connect c2 vol1
pass "a host connects to another volume while the drive hangs"
less "the drive still has requests when the host has connected" 0 "$(on c1 "awk '{ print \$9 }' /sys/block/$slow_disk/stat")"
must on target 'rm /tmp/look'
check "the requests that waited for the drive end" join load
disconnect c1 slow
must on target 'hcablk target unexport slow'

# A device that is slow to open: its opener waits for the partition scan, which waits for the drive below.
volume=$target/volumes/late
must on target "echo '0 65536 linear $drive2 0' | dmsetup create gate && dmsetup mknodes && modprobe loop && losetup -P /dev/loop0 /dev/mapper/gate"
must on target 'dmsetup suspend --nolockfs gate && echo 3 > /proc/sys/vm/drop_caches'
spawn reading target 'blockdev --rereadpt /dev/loop0'
must wait_until target 60 "awk '{ exit !(\$1 > 0) }' /sys/block/loop0/inflight"
spawn opening target 'exec hcablk target export late /dev/loop0'
must wait_until target 60 "grep -q '^State:.D' /proc/\$(pidof hcablk)/status"
check "a volume that is being opened is not enabled yet" on target "[ \$(cat $volume/enable) = 0 ]"
like "the settings of a volume that is being opened cannot be changed" "busy" "$(on target "env echo 1 > $volume/read_only" 2>&1)"
connect c1 vol1
pass "a host connects to another volume while the device is being opened"
same "the device was being opened all the time" 0 "$(on target "cat $volume/enable")"
must on target 'dmsetup resume gate'
join reading
check "the volume is enabled when its device is open" join opening
same "the volume is shown as enabled" 1 "$(on target "cat $volume/enable")"
must on target 'hcablk target unexport late && losetup -d /dev/loop0 && dmsetup remove gate'
