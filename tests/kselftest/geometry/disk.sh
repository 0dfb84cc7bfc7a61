#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: the disk has the drive's size, limits that fit the RDMA device, and a queue pair for every CPU.
# tier: heart
# turn: 1
# takes: 10

. "${0%/*}/../lib/lib.sh"

share c1
queue() {
	on c1 "cat /sys/block/$disk/queue/$1"
}
drive_queue() {
	on target "cat /sys/block/\$(basename \$(readlink -f $drive))/queue/$1"
}
same "the disk has the drive's size" "$(on target "blockdev --getsize64 $drive")" "$(on c1 "blockdev --getsize64 $device")"
same "the target's size attribute is the disk's size" "$(on c1 "blockdev --getsize64 $device")" "$(on target "cat $target/volumes/vol1/size")"
for name in logical_block_size physical_block_size write_cache fua; do
	same "$name is the drive's" "$(drive_queue $name)" "$(queue $name)"
done
same "the disk is writable" 0 "$(on c1 "cat /sys/block/$disk/ro")"
same "the disk does not rotate" 0 "$(queue rotational)"
less "a request can have more than 15 segments" 15 "$(queue max_segments)"
less "a request can be larger than 127 KiB" 127 "$(queue max_hw_sectors_kb)"
less "the segments of the largest request fit one region" "$(queue max_sectors_kb)" \
	$(($(queue max_segments) * 4 + 1))
same "segments end at page boundaries" 4095 "$(queue virt_boundary_mask)"
same "every CPU has a hardware queue" "$(on c1 nproc)" "$(on c1 "ls /sys/block/$disk/mq | wc -l")"
same "a queue holds 128 requests" 128 "$(queue nr_requests)"
queues=$(on c1 nproc)
same "every hardware queue has a queue pair, and the path an admin queue pair" $((queues + 1)) "$(queue_pairs c1)"
same "the target has as many queue pairs" "$(queue_pairs c1)" "$(queue_pairs target)"
same "the client's queue pairs are ready to send" "$(queue_pairs c1)" "$(on c1 "rdma resource show qp | grep -v GSI | grep -c 'state RTS'")"
like "the client's queue pairs belong to the kernel" 'comm \[' "$(on c1 'rdma resource show qp | grep -v GSI')"
same "the device's state is live" live "$(on c1 "cat $initiator/vol1/state")"
silent "the device has no error" on c1 "cat $initiator/vol1/error"
like "the session has an id and an epoch" '^[0-9a-f]{16} [0-9]+$' "$(on c1 "cat $initiator/vol1/session")"
same "the target has the same session" \
	"$(host_id c1) $(on c1 "cat $initiator/vol1/session") $queues" \
	"$(on target "cat $target/volumes/vol1/clients")"

disconnect c1 vol1
refuse "the disk does not exist after the disconnect" on c1 "[ -e /sys/block/$disk ]"
same "the client has no queue pair left" 0 "$(queue_pairs c1)"
check "the target has no queue pair left" wait_until target 60 "[ \$(rdma resource show qp | grep -v 'type GSI' | wc -l) = 0 ]"
