#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: a disk has the requested number of queues, queue depth and block size, including unusual ones.
# turn: 16
# takes: 50

. "${0%/*}/../lib/lib.sh"

export_volume vol1 "$drive" c1
connect c1 vol1 --queues 1
same "a disk with --queues 1 has one queue" 1 "$(on c1 "ls /sys/block/$disk/mq | wc -l")"
same "the client has one queue pair and the admin queue pair" 2 "$(queue_pairs c1)"
same "the target has as many queue pairs" 2 "$(queue_pairs target)"
disconnect c1 vol1
connect c1 vol1 --queues 2 --queue-depth 7
same "a disk with --queue-depth 7 has seven requests" 7 "$(on c1 "cat /sys/block/$disk/queue/nr_requests")"
check "memory of every shape is right with seven requests" on c1 "hcablk-scatter $device edges 5 16"
disconnect c1 vol1

connect c1 vol1 --queue-depth 1
check "memory of every shape is right with depth 1" on c1 "hcablk-scatter $device edges 6 16"
disconnect c1 vol1
connect c1 vol1 --queues 64 --queue-depth 1024
less "the client has fewer CPUs than --queues" "$(on c1 nproc)" 64
same "the queues are limited to the number of CPUs" $(($(on c1 nproc) + 1)) "$(queue_pairs c1)"
check "memory of every shape is right with depth 1024" on c1 "hcablk-scatter $device edges 7 16"
disconnect c1 vol1

# A size that is a multiple of one sector only, on a loop device.
must on target 'modprobe loop; truncate -s $((12345 * 512)) /tmp/odd && losetup /dev/loop0 /tmp/odd'
export_volume odd /dev/loop0 c1
connect c1 odd
same "the disk has an odd number of sectors" $((12345 * 512)) "$(on c1 "blockdev --getsize64 $device")"
check "the last sector is written" on c1 "dd if=/dev/urandom of=$device bs=512 seek=12344 count=1 oflag=direct"
same "the last sector is read" "$(on target 'sync; dd if=/dev/loop0 bs=512 skip=12344 count=1 iflag=direct | md5sum')" \
	"$(on c1 "dd if=$device bs=512 skip=12344 iflag=direct | md5sum")"
refuse "a write beyond the last sector fails" on c1 "dd if=/dev/zero of=$device bs=512 seek=12345 count=1 oflag=direct"
check "memory of every shape is right on an odd size" on c1 "hcablk-scatter $device edges 8 100"
disconnect c1 odd
must on target 'hcablk target unexport odd && losetup -d /dev/loop0 && rm /tmp/odd'

must on target 'modprobe null_blk nr_devices=0 && mkdir /sys/kernel/config/nullb/big &&
	cd /sys/kernel/config/nullb/big && echo 4096 > blocksize && echo 64 > size &&
	echo 1 > memory_backed && echo 1 > power'
export_volume big /dev/big c1
connect c1 big
same "the disk has blocks of 4096 bytes" 4096 "$(on c1 "cat /sys/block/$disk/queue/logical_block_size")"
for case in edges gaps random; do
	check "$case: data is right with blocks of 4096 bytes" on c1 "hcablk-scatter $device $case 9 64"
done
