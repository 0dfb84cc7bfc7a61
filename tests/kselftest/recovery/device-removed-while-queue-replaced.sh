#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: the target's RDMA device can be removed while a queue pair is being replaced because the drive hangs; the session ends after the drive has continued.
# turn: 13
# takes: 90
# waits: yes
# timeout: 480
# guests: target c1
# skips: siw

. "${0%/*}/../lib/lib.sh"
[ "$rdma" = rxe ] || skip "on iWARP each request has a memory region, which is waited for"

must on target "modprobe dm_mod && echo '0 65536 linear $drive2 0' | dmsetup create gate && dmsetup mknodes &&
	echo '0 65536 linear /dev/mapper/gate 0' | dmsetup create door && dmsetup mknodes"
export_volume hung /dev/mapper/door c1
connect c1 hung --queues 2 --io-timeout 4 --connect-timeout 600
pairs=$(queue_pairs c1)
must on target 'dmsetup suspend --nolockfs gate'
# Each processor has its own queue. The target waits for the drive to replace the first one.
spawn first c1 "taskset -c 0 dd if=/dev/zero of=$device bs=4k count=1 oflag=direct conv=notrunc status=none"
check "a queue pair is being replaced" wait_until c1 60 "[ \$(rdma resource show qp | grep -vc 'type GSI') -gt $pairs ]"
spawn second c1 "taskset -c 1 dd if=/dev/zero of=$device bs=4k count=1 seek=8 oflag=direct conv=notrunc status=none"
must wait_until target 60 "cat /sys/block/dm-*/inflight | awk '\$2 > 1 { n = 1 } END { exit !n }'"

ON_SECONDS=$((120 * slow)) check "the RDMA device is removed during the replacement" on target "rdma link delete $rdma_link"
same "the session waits for the drive" 1 "$(on target "wc -l < $target/volumes/hung/clients")"
must on target "rdma link add $rdma_link type $rdma netdev br0"
must wait_until target 60 "rdma link show $rdma_link/1 | grep 'state ACTIVE'"
must on c1 'hcablk disconnect --force --if-exists hung'
refuse "the first write has failed" join first
refuse "the second write has failed" join second

must on target 'dmsetup resume gate'
check "when the drive continues, the session ends" wait_until target 60 "[ -z \"\$(cat $target/volumes/hung/clients)\" ]"
connect c1 hung
check "the volume works again" on c1 "hcablk-scatter $device random 6 8"
disconnect c1 hung
# The module reports mappings that are left when it is unloaded.
must on target 'hcablk target unexport hung && hcablk target unlisten --all &&
	rmmod hcablk_target hcablk_core && dmsetup remove door && dmsetup remove gate'
