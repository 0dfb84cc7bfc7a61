#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: the hcablk command tells as JSON what there is, can be repeated, and undoes what it did.
# tier: heart
# turn: 12
# takes: 10

. "${0%/*}/../lib/lib.sh"

id=$(host_id c1)
same "a client's id is the one of its file" "$id" "$(on c1 'hcablk host-id')"
check "export" on target "hcablk target export vol1 $drive --insecure --allow $id"
check "export again changes nothing" on target "hcablk target export vol1 $drive --insecure --allow $id"
check "connect" on c1 "hcablk connect $target_address vol1 --queues 2"
check "connect again changes nothing" on c1 "hcablk connect $target_address vol1 --queues 2"
list() {
	on c1 'hcablk list --json' | jq -r ".devices[0].$1"
}
same "JSON has a version" 1 "$(on c1 'hcablk list --json' | jq .version)"
same "the device" /dev/hcablk0 "$(list device)"
same "its state" live "$(list state)"
same "its target" $target_address "$(list address)"
same "its volume" vol1 "$(list volume)"
same "its size" "$(on c1 'blockdev --getsize64 /dev/hcablk0')" "$(list size_bytes)"
same "its queues" 2 "$(list queues)"
same "the target's list has the volume" vol1 "$(on target 'hcablk target list --json' | jq -r '.volumes[0].name')"
same "and the client" "$id" "$(on target 'hcablk target list --json' | jq -r '.volumes[0].clients[0].host')"
same "and the session" "$(list session.id)" "$(on target 'hcablk target list --json' | jq -r '.volumes[0].clients[0].session')"
like "the list for people has it too" "vol1.*live|live.*vol1" "$(on c1 'hcablk list' | tr '\n' ' ')"
like "target list for people" "vol1" "$(on target 'hcablk target list')"
on c1 'hcablk disconnect nothere' 2> /dev/null
same "an unknown device is exit code 3" 3 $?
on target 'hcablk target unexport vol1' 2> /dev/null
same "a volume in use is exit code 4" 4 $?
on c1 "hcablk connect $target_address nothere" 2> /dev/null
same "an unknown volume is exit code 6 or 3" 1 $(($? == 6 || $? == 3))
refuse "a failed connect leaves no device" on c1 "[ -d $initiator/nothere ]"
check "disconnect by device" on c1 'hcablk disconnect /dev/hcablk0'
check "disconnect of nothing, if allowed" on c1 'hcablk disconnect vol1 --if-exists'
check "unexport" on target 'hcablk target unexport vol1'
same "nothing is exported" 0 "$(on target 'hcablk target list --json' | jq '.volumes | length')"
