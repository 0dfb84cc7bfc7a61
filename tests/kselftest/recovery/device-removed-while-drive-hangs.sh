#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: the target's RDMA device can be removed and added again while one volume's drive hangs; other volumes reconnect, and the session ends after the drive has continued.
# turn: 12
# takes: 90
# waits: yes
# timeout: 480
# skips: siw

. "${0%/*}/../lib/lib.sh"
[ "$rdma" = rxe ] || skip "on iWARP each request has a memory region, which is waited for"

must on target "modprobe dm_mod && echo '0 65536 linear $drive2 0' | dmsetup create gate && dmsetup mknodes &&
	echo '0 65536 linear /dev/mapper/gate 0' | dmsetup create door && dmsetup mknodes"
export_volume hung /dev/mapper/door c1
export_volume vol1 "$drive" c2
connect c1 hung --queues 1 --io-timeout 600
hung=$device
connect c2 vol1 --ctrl-loss-tmo 600
well=$device
must on target 'dmsetup suspend --nolockfs gate'
# One request of each data path: an eager or inline write, a write whose data the target reads, and a read.
spawn small c1 "dd if=/dev/zero of=$hung bs=4k count=1 oflag=direct conv=notrunc status=none"
spawn fetched c1 "dd if=/dev/zero of=$hung bs=1M count=1 seek=4 oflag=direct conv=notrunc status=none"
must drive_holds write
spawn reading c1 "dd if=$hung of=/dev/null bs=64k count=1 skip=256 iflag=direct status=none"
must drive_holds read
# The large write has all of the queue pair's own buffers.
less "the read has borrowed shared buffers" 0 "$(on target "awk '\$1 == \"size_class\" { n += \$4 } END { print n }' $target/ports/1/memory")"

# The drive has 30 s to finish its requests.
ON_SECONDS=$((120 * slow))
check "the RDMA device is removed while a drive hangs" on target "rdma link delete $rdma_link"
ON_SECONDS=120
same "the session waits for the drive" 1 "$(on target "wc -l < $target/volumes/hung/clients")"
must on target "rdma link add $rdma_link type $rdma netdev br0"
must wait_until target 60 "rdma link show $rdma_link/1 | grep 'state ACTIVE'"
check "the other volume is connected again" wait_until c2 120 "[ \$(cat $initiator/vol1/state) = live ]"
check "the other volume works after it has reconnected" on c2 "hcablk-scatter $well random 5 8"
same "the drive still hangs" 1 "$(on target "wc -l < $target/volumes/hung/clients")"
must on c1 'hcablk disconnect --force hung'
refuse "the small write has failed" join small
refuse "the large write has failed" join fetched
refuse "the read has failed" join reading

must on target 'dmsetup resume gate'
check "when the drive continues, the session ends" wait_until target 60 "[ -z \"\$(cat $target/volumes/hung/clients)\" ]"
connect c1 hung
check "the volume of the drive that hung works again" on c1 "hcablk-scatter $device random 6 8"
disconnect c1 hung
disconnect c2 vol1
check "the target holds no memory for sessions any more" wait_until target 60 "awk '\$1 == \"used\" { exit \$2 != 0 }' $target/ports/1/memory"
# The module reports mappings that are left when it is unloaded.
must on target 'hcablk target unexport hung && hcablk target unexport vol1 && hcablk target unlisten --all &&
	rmmod hcablk_target hcablk_core && dmsetup remove door && dmsetup remove gate'
