#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: a disk keeps waiting while only a lesser RDMA device reaches its target, reports that, and continues when its first RDMA device is back.
# turn: 17
# takes: 5
# guests: target c1
# waits: yes
# skips: rxe hca

. "${0%/*}/../lib/lib.sh"

[ "$rdma" = siw ] || skip "soft-iWARP is the lesser device of this test"
declare -A netdev
for guest in target c1; do
	netdev[$guest]=$(on $guest "rdma link show" | sed -n "s/^link $rdma_link\\/1 .*netdev \\([^ ]*\\).*/\\1/p")
done
# becomes FROM TYPE NAME: replaces the RDMA devices of both guests by a device of this type
becomes() {
	local guest
	for guest in c1 target; do
		must on $guest "rdma link delete $1 && modprobe $([ "$2" = rxe ] && echo rdma_rxe || echo "$2") && rdma link add $3 type $2 netdev ${netdev[$guest]}"
	done
}
# The disk begins with soft-RoCE, whose memory regions are larger than soft-iWARP's.
becomes "$rdma_link" rxe better0
export_volume vol1 "$drive" c1
connect c1 vol1 --ctrl-loss-tmo 600 --reconnect-delay 1 --max-io-kib 2048
same "the disk's requests are larger than the lesser device supports" 1 "$(on c1 "[ \$(cat /sys/block/$disk/queue/max_hw_sectors_kb) -gt 1024 ] && echo 1")"
must on c1 "yes hcablk | dd of=$device bs=64k count=1 iflag=fullblock oflag=direct conv=notrunc,fsync status=none"
spawn reader c1 "until grep -q queueing $initiator/vol1/state; do usleep 20000; done; dd if=$device bs=64k count=1 iflag=direct status=none | md5sum"
becomes better0 siw "$rdma_link"
check "the disk reports why it is not connected" wait_until c1 60 "grep -q 'smaller than those of the device with which the disk was created' $initiator/vol1/error"
check "the disk waits" on c1 "[ -b $device ] && grep -q queueing $initiator/vol1/state"
becomes "$rdma_link" rxe better0
check "the disk is live when its first device is back" wait_until c1 60 "grep -q live $initiator/vol1/state"
check "the waiting read succeeds" join reader
disconnect c1 vol1
must on target 'hcablk target unexport vol1'
becomes better0 siw "$rdma_link"
