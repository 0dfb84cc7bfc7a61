#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: a disk with a ctrl_loss_tmo outlives its connection: no error, no wrong data; and it ends when it must.
# group: fail
# turn: 1
# takes: 370
# waits: yes
# timeout: 2000

. "${0%/*}/lib.sh"

# What the drive acknowledges is on it: else a restarted target may have forgotten.
write_through() {
	must on target "echo 'write through' > /sys/block/\$(basename \$(readlink -f $drive))/queue/write_cache"
}
# state_is STATE
state_is() {
	wait_until c1 60 "[ \$(cat $initiator/vol1/state) = $1 ]"
}
epoch() {
	on c1 "cut -d' ' -f2 $initiator/vol1/session"
}
# verifying NAME: writes and reads what it has written, until it has done so with all of it
verifying() {
	ON_SECONDS=600 spawn "$1" c1 "fio --name=v --filename=$device --direct=1 --ioengine=libaio --rw=randrw \
		--bsrange=4k-128k --size=$(few 96)M --iodepth=16 --numjobs=2 --offset_increment=128M --verify=crc32c \
		--verify_fatal=1 --rate=2m"
	must wait_until c1 30 "awk '{ exit !(\$1 + \$5 > 40) }' /sys/block/$disk/stat"
}

write_through
export_volume vol1 "$drive" c1
connect c1 vol1 --ctrl-loss-tmo 600 --io-timeout 5
first=$(epoch)

verifying killed
must vm kill target
check "the target is killed: requests wait" state_is queueing
check "the disk stays" on c1 "[ -b $device ]"
like "why it has no connection is told" "answer|address|listens|closed|broke" "$(on c1 "cat $initiator/vol1/error")"
must vm start target
write_through
export_volume vol1 "$drive" c1
check "it is connected again" state_is live
check "what was written is read" join killed
same "no request has failed" 0 "$(stat_of c1 $initiator/vol1 errors)"
less "the epoch is a later one" "$first" "$(epoch)"
check "memory of every shape" on c1 "hcablk-scatter $device random 69 16"

verifying cut
must vm link-down target 0
check "the cable is cut: requests wait" state_is queueing
must vm link-up target 0
check "the cable is in: it is connected again" state_is live
check "what was written over the cut is read" join cut
same "still no request has failed" 0 "$(stat_of c1 $initiator/vol1 errors)"

verifying withdrawn
must on target 'hcablk target unexport --force vol1'
check "the export ends: requests wait" state_is queueing
must wait_until c1 30 "grep -q 'no volume of this name' $initiator/vol1/error"
export_volume vol1 "$drive" c1
check "it is exported: it is connected again" state_is live
check "what was written over that is read" join withdrawn
same "no request has failed at all" 0 "$(stat_of c1 $initiator/vol1 errors)"
disconnect c1 vol1
same "no queue pair is left" 0 "$(queue_pairs c1)"
check "nor at the target" wait_until target 60 "$no_queue_pairs"

# A disk that waits can be removed if nobody has it open, and by force if somebody has.
connect c1 vol1 --ctrl-loss-tmo -1
must on target 'hcablk target unexport --force vol1'
check "idle, the loss is noticed" state_is queueing
check "a disk that waits is disconnected" on c1 'hcablk disconnect vol1'
export_volume vol1 "$drive" c1
connect c1 vol1 --ctrl-loss-tmo -1
start_load forced c1 "$device"
must on target 'hcablk target unexport --force vol1'
check "with load, too" state_is queueing
refuse "one that is open is not disconnected" on c1 'hcablk disconnect vol1'
check "and waits on" state_is queueing
check "it is by force" on c1 'hcablk disconnect --force vol1'
ends_within forced 20000 "disconnected by force"

# A disk that works in between stays, however short its sessions are, and for longer than ctrl_loss_tmo.
export_volume vol1 "$drive" c1
connect c1 vol1 --ctrl-loss-tmo 12
verifying short
began=$(now_ms)
for ((losses = 0; $(now_ms) - began < 36000; losses++)); do
	must on target 'hcablk target unexport --force vol1'
	must state_is queueing
	must wait_until c1 30 "grep -q 'no volume of this name' $initiator/vol1/error"
	ended=$(on c1 "awk '{ print \$1 + \$5 }' /sys/block/$disk/stat")
	export_volume vol1 "$drive" c1
	must state_is live
	must wait_until c1 30 "awk '{ exit !(\$1 + \$5 > $ended) }' /sys/block/$disk/stat"
done
check "$losses losses within three times ctrl_loss_tmo: what was written is read" join short
same "no request has failed of these" 0 "$(stat_of c1 $initiator/vol1 errors)"
disconnect c1 vol1
must on target 'hcablk target unexport vol1'

# There is an end.
export_volume vol1 "$drive" c1
connect c1 vol1 --ctrl-loss-tmo $((8 * slow))
start_load over c1 "$device"
must on target 'hcablk target unexport --force vol1'
check "until ctrl_loss_tmo is over requests wait" state_is queueing
ends_within over 30000 "ctrl_loss_tmo is over"
check "the disk goes" wait_until c1 30 "[ ! -e /sys/block/$disk ]"
check "the state tells" state_is failed
must on c1 'hcablk disconnect vol1'

# Requests need not wait as long as the disk does.
export_volume vol1 "$drive" c1
connect c1 vol1 --ctrl-loss-tmo -1 --fast-io-fail-tmo $((8 * slow))
start_load fast c1 "$device"
must on target 'hcablk target unexport --force vol1'
check "requests wait at first" state_is queueing
ends_within fast 30000 "fast_io_fail_tmo is over"
same "the state tells" failing-fast "$(on c1 "cat $initiator/vol1/state")"
check "the disk stays" on c1 "[ -b $device ]"
refuse "what comes fails at once" on c1 "dd if=$device of=/dev/null bs=4k count=1 iflag=direct"
export_volume vol1 "$drive" c1
check "it is connected again" state_is live
check "and serves" on c1 "hcablk-scatter $device random 691 4"
must on target 'hcablk target unexport --force vol1'
check "a loss that follows soon belongs to the one before: requests need not wait again" state_is failing-fast
export_volume vol1 "$drive" c1
check "it is connected once more" state_is live
disconnect c1 vol1

export_volume vol1 "$drive" c1
connect c1 vol1 --ctrl-loss-tmo -1
start_load refused c1 "$device"
must on target "hcablk target forbid vol1 $(host_id c1)"
ends_within refused 30000 "the host is not allowed any more"
check "no attempt changes that" state_is failed
like "the reason is told" "does not allow" "$(on c1 "cat $initiator/vol1/error")"
must on c1 'hcablk disconnect vol1'
# What refers to an RDMA device that goes away lets go of it, also while the disk waits.
must on target "hcablk target allow vol1 $(host_id c1)"
connect c1 vol1 --ctrl-loss-tmo -1
must on target 'hcablk target unexport --force vol1'
must state_is queueing
ON_SECONDS=30 check "the RDMA device is removed while the disk waits" on c1 "rdma link delete $rdma_link"
check "it says so" wait_until c1 30 "grep 'looking for an RDMA device that reaches the address failed' $initiator/vol1/error"
same "it goes on waiting" queueing "$(on c1 "cat $initiator/vol1/state")"
must on c1 "rdma link add $rdma_link type $rdma netdev eth0"
must wait_until c1 60 "rdma link show $rdma_link/1 | grep 'state ACTIVE'"
export_volume vol1 "$drive" c1
check "it is connected when the device and the volume are back" state_is live
must on c1 'hcablk disconnect vol1'
must wait_until c1 60 "rdma link show $rdma_link/1 | grep 'state ACTIVE'"
check "the module unloads" on c1 'rmmod hcablk hcablk_core'
