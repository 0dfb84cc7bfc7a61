#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: with any batching thresholds and bursts of any length, no request waits for a response without an interrupt, even while processors go offline and online.
# turn: 17
# takes: 110
# skips: siw
# timeout: 800

. "${0%/*}/../lib/lib.sh"

[ "$rdma" != siw ] || skip "on iWARP every completion raises an event"

# short_fio OPTIONS: runs fio, which takes at most a second or two.
short_fio() {
	ON_SECONDS=40 on c1 "fio --output-format=terse --terse-version=3 $*"
}

# A burst of any length may be the last: no later event would find its responses. A response that nobody reports waits for a
# probe, 5 s each time.
export_volume vol1 "$drive" c1
for setting in $(by_turns "1:0 1024:1024 0:0" "2:1 32:16"); do
	setting=${setting/:/ }
	connect c1 vol1 --queues 1 --queue-depth 256 --batch-upper "${setting% *}" --batch-lower "${setting#* }"
	same "$setting: the thresholds are shown" "$setting" "$(on c1 "cd $initiator/vol1 && echo \$(cat batch_upper batch_lower)")"
	for burst in 1 2 17 64 250; do
		check "$setting: bursts of $burst, and silence after each" short_fio "--name=b --filename=$device --direct=1 \
			--ioengine=libaio --rw=randrw --bs=4k --size=64m --iodepth=$burst --iodepth_batch=$burst \
			--iodepth_batch_complete_min=$burst --number_ios=$((burst * 16))"
	done
	check "$setting: data is read back as written" fio c1 "--name=v --filename=$device --rw=randrw --bsrange=512-16k --blockalign=512 \
		--iodepth=200 --numjobs=2 --size=$(few 2)M --offset_increment=64M --verify=crc32c --verify_fatal=1"
	check "$setting: data is right with memory of every shape" on c1 "hcablk-scatter $device random 19 4"
	disconnect c1 vol1
done

# The processor that issued requests goes offline and comes back while they are in flight.
connect c1 vol1 --batch-upper 8 --batch-lower 2
spawn load c1 "fio --name=v --filename=$device --direct=1 --ioengine=libaio --rw=randrw --bs=4k --iodepth=48 --numjobs=2 \
	--size=$(few 8)M --offset_increment=64M --verify=crc32c --verify_fatal=1 > /tmp/load 2>&1"
must wait_until c1 30 "awk '{ exit !\$9 }' /sys/block/$disk/stat"
gone=0
for _ in 1 2 3 4 5 6; do
	under_way=$(on c1 "awk '{ print \$9 }' /sys/block/$disk/stat && echo 0 > /sys/devices/system/cpu/cpu1/online && usleep 100000 &&
		echo 1 > /sys/devices/system/cpu/cpu1/online") || die "a processor goes offline and online"
	[ "$under_way" = 0 ] || gone=$((gone + 1))
done
less "a processor went offline while requests were in flight" 0 "$gone"
check "the load ends without an error while a processor goes offline and online" joined load c1
disconnect c1 vol1
