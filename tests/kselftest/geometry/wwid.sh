#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: a volume is known by the same id each time, and another one under its name is not taken for it.
# turn: 12
# takes: 15

. "${0%/*}/../lib/lib.sh"

one=0b6c0d0e-4a5b-4f0e-9c57-7a2f3f6f2d11
two=0b6c0d0e-4a5b-4f0e-9c57-7a2f3f6f2d12

export_volume vol1 "$drive" c1
derived=$(on target "cat $target/volumes/vol1/wwid")
like "a volume has an id by itself" '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$' "$derived"
connect c1 vol1
same "its disk tells it" "uuid.$derived" "$(on c1 "cat /sys/block/$disk/wwid")"
same "and its device" "$derived" "$(on c1 "cat $initiator/vol1/wwid")"
like "and the command" "\"wwid\": *\"$derived\"" "$(on c1 'hcablk list --json')"
like "it is not changed while it is exported" busy "$(on target "env echo $one > $target/volumes/vol1/wwid" 2>&1)"
disconnect c1 vol1
silent "without a disk there is none" on c1 "mkdir $initiator/none && cat $initiator/none/wwid && rmdir $initiator/none"

must on target 'hcablk target unexport vol1'
export_volume vol1 "$drive" c1
same "it is the same when the drive is exported again" "$derived" "$(on target "cat $target/volumes/vol1/wwid")"
check "who wants this one gets it" on c1 "hcablk connect $target_address vol1 --wwid $derived && hcablk disconnect vol1"
refuse "who wants another one does not" on c1 "hcablk connect $target_address vol1 --wwid $one"
same "no queue pair is left" 0 "$(queue_pairs c1)"

# The connection is lost, and there is another drive under the name when it is made again.
connect c1 vol1
must on target 'hcablk target unexport --force vol1'
must wait_until c1 30 "grep -q failed $initiator/vol1/state"
export_volume vol1 "$drive2" c1
other=$(on target "cat $target/volumes/vol1/wwid")
like "another drive has an id, too" '^[0-9a-f]{8}-[0-9a-f-]{27}$' "$other"
refuse "and it is another one" [ "$derived" = "$other" ]
refuse "and is not taken for the lost one" on c1 "env echo 1 > $initiator/vol1/enable"
like "which is told" 'not the one that was connected before' "$(on c1 "cat $initiator/vol1/error")"
refuse "there is no disk" on c1 "[ -e $device ]"
refuse "nor at another try" on c1 "env echo 1 > $initiator/vol1/enable"
must on target 'hcablk target unexport vol1'
export_volume vol1 "$drive" c1
check "the right one is" on c1 "env echo 1 > $initiator/vol1/enable"
disconnect c1 vol1

# Ids that are given, and none.
must on target "hcablk target unexport vol1"
export_volume vol1 "$drive" --wwid=$two c1
connect c1 vol1 --wwid $two
same "an id can be given" "uuid.$two" "$(on c1 "cat /sys/block/$disk/wwid")"
must on target 'hcablk target unexport --force vol1'
must wait_until c1 30 "grep -q failed $initiator/vol1/state"
export_volume vol1 "$drive" c1
must on target "echo 0 > $target/volumes/vol1/enable && env echo > $target/volumes/vol1/wwid &&
	echo 0 > $target/volumes/vol1/keep_reservations && echo 1 > $target/volumes/vol1/enable"
refuse "one without an id is not taken for one with it" on c1 "env echo > $initiator/vol1/expect_wwid; env echo 1 > $initiator/vol1/enable"
check "until that is forgotten" on c1 "env echo 0 > $initiator/vol1/enable && env echo 1 > $initiator/vol1/enable"
silent "its disk has none" on c1 "cat /sys/block/\$(cat $initiator/vol1/device)/wwid"
