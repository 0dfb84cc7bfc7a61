#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: the hcablk command reports volumes and disks as JSON, can be repeated, and undoes what it did.
# tier: heart
# turn: 12
# takes: 10

. "${0%/*}/../lib/lib.sh"

id=$(host_id c1)
same "hcablk host-id prints the id of the client's file" "$id" "$(on c1 'hcablk host-id')"
check "the target exports a volume" on target "hcablk target export vol1 $drive --insecure --allow $id"
check "a second export changes nothing" on target "hcablk target export vol1 $drive --insecure --allow $id"
check "the client connects the volume" on c1 "hcablk connect $target_address vol1 --queues 2"
check "a second connect changes nothing" on c1 "hcablk connect $target_address vol1 --queues 2"
list() {
	on c1 'hcablk list --json' | jq -r ".devices[0].$1"
}
same "the JSON has a version" 1 "$(on c1 'hcablk list --json' | jq .version)"
same "the JSON has the device" /dev/hcablk0 "$(list device)"
same "the JSON has the disk's state" live "$(list state)"
same "the JSON has the target's address" $target_address "$(list address)"
same "the JSON has the volume's name" vol1 "$(list volume)"
same "the JSON has the disk's size" "$(on c1 'blockdev --getsize64 /dev/hcablk0')" "$(list size_bytes)"
same "the JSON has the number of queues" 2 "$(list queues)"
same "the target's JSON has the volume" vol1 "$(on target 'hcablk target list --json' | jq -r '.volumes[0].name')"
same "the target's JSON has the client" "$id" "$(on target 'hcablk target list --json' | jq -r '.volumes[0].clients[0].host')"
same "the target's JSON has the session" "$(list session.id)" "$(on target 'hcablk target list --json' | jq -r '.volumes[0].clients[0].session')"
like "the client's text list has volume and state" "vol1.*live|live.*vol1" "$(on c1 'hcablk list' | tr '\n' ' ')"
like "the target's text list has the volume" "vol1" "$(on target 'hcablk target list')"
on c1 'hcablk disconnect nothere' 2> /dev/null
same "an unknown device gives exit code 3" 3 $?
on target 'hcablk target unexport vol1' 2> /dev/null
same "a volume in use gives exit code 4" 4 $?
on c1 "hcablk connect $target_address nothere" 2> /dev/null
same "an unknown volume gives exit code 6 or 3" 1 $(($? == 6 || $? == 3))
refuse "a failed connect leaves no device" on c1 "[ -d $initiator/nothere ]"
check "the client disconnects by device name" on c1 'hcablk disconnect /dev/hcablk0'
check "disconnect --if-exists accepts a device that does not exist" on c1 'hcablk disconnect vol1 --if-exists'
check "the target unexports the volume" on target 'hcablk target unexport vol1'
same "the target exports nothing any more" 0 "$(on target 'hcablk target list --json' | jq '.volumes | length')"
