#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: the target's RDMA device can be removed while the ending of an export waits for a drive that hangs in a flush and has no other request; the export ends after the drive has continued.
# turn: 17
# takes: 60
# waits: yes
# timeout: 480
# guests: target c1
# skips: siw

. "${0%/*}/../lib/lib.sh"
[ "$rdma" = rxe ] || skip "on iWARP each request has a memory region, which is waited for"

must on target "modprobe dm_mod && echo '0 65536 linear $drive2 0' | dmsetup create gate && dmsetup mknodes &&
	echo '0 65536 linear /dev/mapper/gate 0' | dmsetup create door && dmsetup mknodes"
export_volume hung /dev/mapper/door c1
connect c1 hung --queues 2
must on c1 "dd if=/dev/zero of=$device bs=4k count=1 oflag=direct conv=notrunc status=none"
must on target 'dmsetup suspend --nolockfs gate'
ON_SECONDS=600 spawn ending target 'hcablk target unexport --force hung'
must wait_log target 30 'hung: session .* ended: the volume is disabled'
# The target makes the write durable before it answers whether it is.
check "the end of the export waits for a flush" wait_until target 60 "cat /proc/[0-9]*/stack | grep blkdev_issue_flush"

ON_SECONDS=$((120 * slow)) check "the RDMA device is removed while the export is ending" on target "rdma link delete $rdma_link"
check "the export is still ending" on target "[ -d $target/volumes/hung ]"
must on target "rdma link add $rdma_link type $rdma netdev br0"
must wait_until target 60 "rdma link show $rdma_link/1 | grep 'state ACTIVE'"

must on target 'dmsetup resume gate'
check "when the drive continues, the export ends" join ending
must on c1 'hcablk disconnect --force --if-exists hung'
# The module reports mappings that are left when it is unloaded.
must on target 'hcablk target unlisten --all && rmmod hcablk_target hcablk_core && dmsetup remove door && dmsetup remove gate'
