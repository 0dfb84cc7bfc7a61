#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: behind an IOMMU writes of up to 4 KiB are copied and sent from memory that stays mapped, their data is right, no other byte is sent, and larger writes and registered ones are mapped as before.
# turn: 18
# takes: 60
# guests: hca-iommu
# timeout: 600

. "${0%/*}/../lib/lib.sh"
. "${0%/*}/../lib/hca.sh"

hca_in hca-iommu
hca_pair
export_volume vol1 "$drive" c1
must on c1 "modprobe hcablk"

# begin --OPTION…: connects, and reads on every queue: the first response grants the ring.
begin() {
	connect c1 vol1 "$@"
	must on c1 "for cpu in \$(seq 0 \$((\$(nproc) - 1))); do
			taskset -c \$cpu dd if=$device of=/dev/null bs=4k count=1 iflag=direct || exit
		done"
}

# writes "DESCRIPTION" BYTES copied|mapped COUNTER [DD-FLAG]: makes twenty writes of random data, one at a time, and checks that
# COUNTER counts them, how their bytes are counted, and that the drive has the data.
writes() {
	local n=20 before after name got="" wanted sent
	before=$(on c1 "dd if=/dev/urandom of=/tmp/data bs=$2 count=$n 2>/dev/null && cat $initiator/vol1/stats") || die "$1"
	sent=$(counted hca0 dma_bytes)
	after=$(on c1 "dd if=/tmp/data of=$device bs=$2 count=$n oflag=direct${5:+,$5} && cat $initiator/vol1/stats") || die "$1"
	sent=$(($(counted hca0 dma_bytes) - sent))
	for name in "$4" copied_writes copied_bytes rdma_bytes; do
		got+="$(($(count "$name" "$after") - $(count "$name" "$before"))) "
	done
	wanted="$n 0 0 $((n * $2)) "
	[ "$3" = mapped ] || wanted="$n $n $((n * $2)) 0 "
	same "$1" "$wanted" "$got"
	# Messages and responses have at most 512 bytes.
	less "$1: the device moves the data and little else" $sent $((n * ($2 + 512)))
	check "$1: the drive has the data" on c1 "cmp -n $((n * $2)) /tmp/data $drive"
}

begin
for bytes in 512 3584; do
	writes "a write of $bytes bytes with its message is copied" $bytes copied inline_writes
done
writes "a write of 4 KiB by RDMA WRITE is copied" 4096 copied eager_writes
writes "a write of 4 KiB with FUA is copied" 4096 copied inline_writes dsync
writes "a write of 4608 bytes is mapped" 4608 mapped eager_writes
writes "a write of 8 KiB is mapped" 8192 mapped eager_writes
writes "a write of 64 KiB is mapped" 65536 mapped registrations
disconnect c1 vol1

begin --small-write 0
writes "a write of 512 bytes by RDMA WRITE is copied" 512 copied eager_writes
writes "a write of 4 KiB with FUA by RDMA WRITE is copied" 4096 copied eager_writes dsync
disconnect c1 vol1

begin --small-write 0 --eager-write 0
writes "a write that the target reads by RDMA READ is mapped" 4096 mapped registrations
disconnect c1 vol1

# Few tags, so that the same slots serve one request after the other, while the device completes late and sends packets again.
begin --queues 1 --queue-depth 4
knob hca0 send_delay_us 3000
copied=$(stat_of c1 $initiator/vol1 copied_writes)
spawn verify c1 "fio --output-format=terse --name=v --filename=$device --direct=1 --ioengine=libaio --rw=randrw --bsrange=512-4k \
	--blockalign=512 --iodepth=8 --size=$(few 4)M --verify=crc32c --verify_fatal=1"
must wait_until c1 30 "awk '{ exit !(\$1 + \$5 > 100) }' /sys/block/$disk/stat"
for dev in hca0 hca1; do
	knob $dev lose 3
	must wait_until c1 60 "[ \$(cat /sys/kernel/debug/hcablk_hca/$dev/lose) = 0 ]"
done
check "fio verifies small writes although completions are late and packets are lost" join verify
less "lost packets were sent again" 0 $(($(counted hca0 resent) + $(counted hca1 resent)))
less "these writes were copied" $((copied + 100)) "$(stat_of c1 $initiator/vol1 copied_writes)"
knob hca0 send_delay_us 0
for case in sizes bytes; do
	check "$case: memory of every shape arrives" on c1 "hcablk-scatter $device $case $RANDOM 8"
done
same "no errors" "0 0" "$(stat_of c1 $initiator/vol1 errors) $(stat_of c1 $initiator/vol1 protocol_errors)"
for dev in hca0 hca1; do
	same "$dev made no access without a mapping" 0 "$(counted $dev dma_faults)"
done
hca_end
