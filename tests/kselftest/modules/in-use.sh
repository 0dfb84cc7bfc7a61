#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: a module in use does not unload and keeps working, and unloads after its last user has left.
# turn: 5
# takes: 15

. "${0%/*}/../lib/lib.sh"

share c1
spawn holder c1 "exec sleep $((100 * slow)) < $device"
must wait_until c1 60 'pidof sleep'

refuse "the initiator does not unload while a disk is open" on c1 'rmmod hcablk'
like "a device with an open disk is not disabled" "busy" \
	"$(on c1 "env echo 0 > $initiator/vol1/enable" 2>&1)"
refuse "the directory of a device with an open disk is not removed" on c1 "rmdir $initiator/vol1"
refuse "the command does not disconnect an open disk" on c1 'hcablk disconnect vol1'
check "the disk still works" on c1 "hcablk-scatter $device random 3 16"
refuse "the target does not unload while it exports" on target 'rmmod hcablk_target'
like "an enabled volume's directory is not removed" "busy" "$(on target "rmdir $target/volumes/vol1" 2>&1)"

must on c1 'killall sleep'
join holder
refuse "the initiator does not unload while a device is configured" on c1 'rmmod hcablk'
check "a closed disk is disconnected" on c1 'hcablk disconnect vol1'
refuse "the disconnected disk is gone" on c1 "[ -e $device ]"
check "the initiator unloads" on c1 'rmmod hcablk hcablk_core'
same "the unloaded initiator leaves no queue pairs" 0 "$(queue_pairs c1)"
check "the target's session is over" wait_until target 60 "[ -z \"\$(cat $target/volumes/vol1/clients)\" ]"
same "the target's queue pairs are gone" 0 "$(queue_pairs target)"
check "the volume ends" on target 'hcablk target unexport vol1 && hcablk target unlisten --all'
check "the target unloads" on target 'rmmod hcablk_target hcablk_core'
silent "no memory regions are left at the target" on target 'rdma resource show mr'
silent "no protection domains are left at the target" on target 'set -o pipefail; rdma resource show pd | sed -n /hcablk/p'

share c1
check "the disk works again after both modules were reloaded" on c1 "hcablk-scatter $device random 4 16"
