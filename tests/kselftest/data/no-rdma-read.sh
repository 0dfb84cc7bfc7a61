#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: a target that posts no RDMA READ gets all data of writes, of every size and from several clients.
# tier: heart
# turn: 0
# takes: 130
# timeout: 700

. "${0%/*}/../lib/lib.sh"

must on target 'modprobe hcablk_target rdma_read=0'
export_volume vol1 "$drive" c1 c2
for client in c1 c2; do
	connect $client vol1
done
seed=$RANDOM
echo "# seed $seed"
for case in sizes pages edges gaps random; do
	check "$case: hcablk-scatter reads what it wrote" on c1 "hcablk-scatter $device $case $seed 6"
done
check "fio verifies many requests of all sizes" fio c1 "--name=v --filename=$device --rw=randrw --bsrange=512-1M \
	--blockalign=512 --iodepth=32 --numjobs=2 --size=$(few 8)M --offset_increment=100M --verify=crc32c --verify_fatal=1"
# Both clients at once, each with its own blocks.
spawn other c2 "fio --name=v --filename=$device --direct=1 --ioengine=libaio --rw=randwrite --bsrange=4k-1M --blockalign=4k \
	--iodepth=16 --offset=400M --size=$(few 16)M --verify=crc32c --verify_fatal=1 > /tmp/load 2>&1"
check "fio verifies c1's data while c2 writes" fio c1 "--name=v --filename=$device --rw=randwrite --bs=4k --iodepth=64 --offset=300M \
	--size=$(few 2)M --verify=crc32c --verify_fatal=1"
check "fio verifies c2's data" joined other c2
check "synchronous writes succeed" on c1 "dd if=/dev/urandom of=$device bs=64k count=50 oflag=direct,dsync"
same "the drive holds what the client reads" "$(on target "dd if=$drive bs=1M count=24 iflag=direct | sha256sum")" \
	"$(on c1 "dd if=$device bs=1M count=24 iflag=direct | sha256sum")"
for client in c1 c2; do
	less "$client: some writes were eager" 0 "$(stat_of $client $initiator/vol1 eager_writes)"
	same "$client: the disk has no errors" 0 "$(stat_of $client $initiator/vol1 errors)"
done
same "the target posted no RDMA READ and registered nothing" "0 0" "$(stat_of target $target/volumes/vol1 rdma_reads) $(stat_of target $target/volumes/vol1 registrations)"
same "the target has no protocol errors" 0 "$(stat_of target $target/volumes/vol1 protocol_errors)"
for client in c1 c2; do
	disconnect $client vol1
done

# The eager ring must hold the largest write, and the buffers of reads need the same size in addition.
must on target 'hcablk target unlisten --all && hcablk target listen --buffer-mib 1'
refuse "a disk is refused when buffer_mib is too small" on c1 "hcablk connect $target_address vol1"
check "the target reports how much buffer_mib it needs" wait_log target 60 'without RDMA READ buffer_mib must be at least 2 for each'
must on target 'hcablk target unlisten --all && hcablk target listen --buffer-mib 2'
connect c1 vol1 --queues 1 --queue-depth 4
check "the least buffer_mib is enough for every shape" on c1 "hcablk-scatter $device random $((seed + 1)) 3"
check "fio verifies several large writes at a time" fio c1 "--name=v --filename=$device --rw=randwrite --bs=1M --iodepth=8 \
	--size=$(few 8)M --verify=crc32c --verify_fatal=1"
less "some writes waited for room in the eager ring" 0 "$(stat_of c1 $initiator/vol1 eager_misses)"
same "the target read no write by RDMA READ" 0 "$(stat_of target $target/volumes/vol1 rdma_reads)"
