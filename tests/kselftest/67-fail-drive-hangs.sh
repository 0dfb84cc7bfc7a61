#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: while one volume's drive hangs, or its device is being opened, its counters are read at once, and hosts connect to the others.
# group: fail
# waits: yes
# timeout: 200

. "${0%/*}/lib.sh"

# within SECONDS "DESCRIPTION" COMMAND…: it is done in that time
within() {
	local seconds=$1 what=$2 start
	shift 2
	start=$(now_ms)
	"$@" > /dev/null || die "$what: failed"
	less "$what" $(($(now_ms) - start)) $((seconds * 1000 * slow))
}
# One request at a time, for three seconds: whoever has another one waits for it in the kernel, asleep.
must on target "modprobe null_blk nr_devices=0 && mkdir /sys/kernel/config/nullb/slow && cd /sys/kernel/config/nullb/slow &&
	echo 64 > size && echo 2 > irqmode && echo $((3000000000 * slow)) > completion_nsec && echo 1 > hw_queue_depth &&
	echo 1 > submit_queues && echo 1 > memory_backed && echo 1 > power"
export_volume slow /dev/slow c1
export_volume vol1 "$drive" c1 c2
connect c1 slow --queues 1 --io-timeout $((100 * slow))
slow_disk=$disk
# Far enough from each other not to become one request.
spawn load c1 "fio --name=load --filename=$device --direct=1 --ioengine=libaio --rw=read:64k --bs=4k --iodepth=8 --size=1M --io_size=32k"
must wait_until target 20 "awk '{ exit !(\$9 > 0) }' /sys/block/slow/stat"
must wait_until c1 20 "awk '{ exit !(\$9 > 4) }' /sys/block/$slow_disk/stat"

within 2 "the counters are told although requests wait for the drive" on target "cat $target/volumes/slow/stats"
within 2 "so are the times" on target "cat $target/volumes/slow/times"
# Readers that always are there.
must on target "touch /tmp/look && for file in stats times; do
	(while [ -e /tmp/look ]; do cat $target/volumes/slow/\$file; done > /dev/null 2>&1 &); done"
within 5 "meanwhile a host connects to another volume" connect c2 vol1
less "all the time the drive was behind" 0 "$(on c1 "awk '{ print \$9 }' /sys/block/$slow_disk/stat")"
must on target 'rm /tmp/look'
check "what waited for the drive is done" join load
disconnect c1 slow
must on target 'hcablk target unexport slow'

# A device that takes time to open: whoever opens it waits for who reads its partitions, who waits for the drive below.
volume=$target/volumes/late
must on target "echo '0 65536 linear $drive2 0' | dmsetup create gate && dmsetup mknodes && modprobe loop && losetup -P /dev/loop0 /dev/mapper/gate"
must on target 'dmsetup suspend --nolockfs gate && echo 3 > /proc/sys/vm/drop_caches'
spawn reading target 'blockdev --rereadpt /dev/loop0'
must wait_until target 20 "awk '{ exit !(\$1 > 0) }' /sys/block/loop0/inflight"
spawn opening target 'exec hcablk target export late /dev/loop0'
must wait_until target 20 "grep -q '^State:.D' /proc/\$(pidof hcablk)/status"
within 2 "a volume that is being opened is not enabled yet" on target "[ \$(cat $volume/enable) = 0 ]"
like "its settings stay" "busy" "$(on target "env echo 1 > $volume/read_only" 2>&1)"
within 5 "meanwhile a host connects to another volume" connect c1 vol1
same "all the time it was not open" 0 "$(on target "cat $volume/enable")"
must on target 'dmsetup resume gate'
join reading
check "it is enabled when it is open" join opening
same "which is shown" 1 "$(on target "cat $volume/enable")"
must on target 'hcablk target unexport late && losetup -d /dev/loop0 && dmsetup remove gate'
