#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: while an RDMA device does not finish the destruction of queue pairs, commands for the disk work, those that wait for the device can be interrupted, and paths that are lost together do not wait for each other.
# turn: 11
# takes: 45
# guests: hca
# timeout: 600

. "${0%/*}/../lib/lib.sh"
. "${0%/*}/../lib/hca.sh"
. "${0%/*}/../lib/multi.sh"

hca_pair
must on target 'hcablk target listen && hcablk target listen --id 7 --port 7755'
export_volume vol1 "$drive" c1

# begin: connects a disk with two paths.
begin() {
	connect c1 vol1 --ctrl-loss-tmo 600 --queues 2
	must on c1 "cd $initiator/vol1/paths && mkdir -p 1 && echo $target_address > 1/address && echo 7755 > 1/port && echo 1 > 1/enable"
	must path_is c1 vol1 1 live
}

# holds COUNT: waits until the destruction of queue pairs of the initiator's device holds COUNT threads.
holds() {
	wait_until c1 60 "[ \$(cat /sys/kernel/debug/hcablk_hca/hca0/counters/held) -ge $1 ]"
}

# write_in_time "WHAT" VALUE FILE: checks that a write to the disk's configuration succeeds although queue pairs are being destroyed.
write_in_time() {
	ON_SECONDS=40 check "$1" on c1 "cd $initiator/vol1 && timeout -s INT 20 sh -c 'echo $2 > $3'"
}

# interrupted "WHAT" VALUE FILE: checks that a signal ends the write.
interrupted() {
	local code=0
	ON_SECONDS=40 on c1 "cd $initiator/vol1 && timeout -s INT 2 sh -c 'echo $2 > $3'" >&2 || code=$?
	same "$1" 124 "$code"
}

# A path is disabled, and later the disk. Only destructions of the path are held, but enable and disable wait for them.
begin
knob hca0 hold_destroy 1
ON_SECONDS=400 spawn disabling c1 "echo 0 > $initiator/vol1/paths/1/enable"
check "the command that disables a path does not wait for the destruction of the admin queue pair" holds 2
knob hca0 hold_destroy 2
same "the path is disabled before its queue pairs are destroyed" 0 "$(on c1 "cat $initiator/vol1/paths/1/enable")"
write_in_time "the policy can be changed while a disabled path's queue pairs are destroyed" round-robin policy
write_in_time "a disk that is connected can be enabled again while queue pairs are destroyed" 1 enable
check "the disk is read over the other path" on c1 "dd if=$device of=/dev/null bs=4k count=8 iflag=direct"
interrupted "a signal ends the write of 0 to enable, which waits for the destruction of queue pairs" 0 enable
same "the disk is removed although the write was interrupted" new "$(on c1 "cat $initiator/vol1/state")"
interrupted "a second write of 0 to enable waits again, and a signal ends it" 0 enable
interrupted "a signal ends the write of 1 to enable, which waits for the destruction of queue pairs" 1 enable
same "the interrupted write of 1 has not changed the state" new "$(on c1 "cat $initiator/vol1/state")"
silent "the interrupted write of 1 shows no error" on c1 "cat $initiator/vol1/error"
same "the queue pairs are still held" 2 "$(counted hca0 held)"
ON_SECONDS=400 spawn enabling c1 "echo 1 > $initiator/vol1/enable"
knob hca0 hold_destroy 0
check "the path has been disabled" join disabling
check "the disk is connected when the queue pairs are destroyed" join enabling
same "the disk is live" live "$(on c1 "cat $initiator/vol1/state")"
disconnect c1 vol1

# The device is removed: both paths are lost at once. Their sessions' admin queue pairs, which are destroyed first, are not held.
begin
knob hca0 hold_after 2
card=$(on c1 'readlink -f /sys/class/net/hcaport0/device')
card=${card##*/}
knob hca0 hold_destroy 1
ON_SECONDS=400 spawn unbinding c1 "echo $card > /sys/bus/pci/drivers/hcablk_hca/unbind"
must holds 1
for path in 0 1; do
	check "path $path is lost although queue pairs are being destroyed" wait_log c1 30 "vol1: path $path lost: the RDMA device was removed"
done
write_in_time "the policy can be changed while lost paths' queue pairs are destroyed" queue-depth policy
like "the disk is listed while lost paths' queue pairs are destroyed" "vol1" "$(ON_SECONDS=40 on c1 'hcablk list')"
same "the disk waits for a path" queueing "$(on c1 "cat $initiator/vol1/state")"
knob hca0 hold_destroy 0
check "the device is unbound when the queue pairs are destroyed" join unbinding
must on c1 "echo $card > /sys/bus/pci/drivers/hcablk_hca/bind"
hca_again 0
check "the disk is live with both paths again" wait_until c1 120 "[ \$(cat $initiator/vol1/state) = live ]"
check "the disk can be read" on c1 "dd if=$device of=/dev/null bs=4k count=8 iflag=direct"

# The disk is removed by force.
knob hca0 hold_after 2
knob hca0 hold_destroy 1
ON_SECONDS=400 spawn forced c1 "echo 1 > $initiator/vol1/force_disconnect"
must holds 1
check "the disk has failed before its queue pairs are destroyed" wait_until c1 20 "[ \$(cat $initiator/vol1/state) = failed ]"
write_in_time "a setting can be changed while a removed disk's queue pairs are destroyed" 30 ctrl_loss_tmo
knob hca0 hold_destroy 2
interrupted "a signal ends the write of 1 to enable while a removed disk's queue pairs are destroyed" 1 enable
same "the state is still failed" failed "$(on c1 "cat $initiator/vol1/state")"
knob hca0 hold_destroy 0
check "the disk is removed by force" join forced
write_in_time "the disk is connected again" 1 enable
check "the disk can be read again" on c1 "dd if=$device of=/dev/null bs=4k count=8 iflag=direct"
hca_end
