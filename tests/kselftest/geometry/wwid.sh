#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: a volume has the same id each time, and a disk does not accept another volume under the same name.
# turn: 12
# takes: 15

. "${0%/*}/../lib/lib.sh"

one=0b6c0d0e-4a5b-4f0e-9c57-7a2f3f6f2d11
two=0b6c0d0e-4a5b-4f0e-9c57-7a2f3f6f2d12

export_volume vol1 "$drive" c1
derived=$(on target "cat $target/volumes/vol1/wwid")
like "a volume has a derived id" '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$' "$derived"
connect c1 vol1
same "the disk's sysfs attribute has the id" "uuid.$derived" "$(on c1 "cat /sys/block/$disk/wwid")"
same "the device's configfs attribute has the id" "$derived" "$(on c1 "cat $initiator/vol1/wwid")"
like "hcablk list has the id" "\"wwid\": *\"$derived\"" "$(on c1 'hcablk list --json')"
like "the id cannot be changed while the volume is exported" busy "$(on target "env echo $one > $target/volumes/vol1/wwid" 2>&1)"
disconnect c1 vol1
silent "a device without a disk has no id" on c1 "mkdir $initiator/none && cat $initiator/none/wwid && rmdir $initiator/none"

must on target 'hcablk target unexport vol1'
export_volume vol1 "$drive" c1
same "the id is the same when the drive is exported again" "$derived" "$(on target "cat $target/volumes/vol1/wwid")"
check "a connection that requires this id succeeds" on c1 "hcablk connect $target_address vol1 --wwid $derived && hcablk disconnect vol1"
refuse "a connection that requires another id is refused" on c1 "hcablk connect $target_address vol1 --wwid $one"
same "no queue pair is left" 0 "$(queue_pairs c1)"

# The connection is lost, and another drive has the name when the disk reconnects.
connect c1 vol1
must on target 'hcablk target unexport --force vol1'
must wait_until c1 30 "grep -q failed $initiator/vol1/state"
export_volume vol1 "$drive2" c1
other=$(on target "cat $target/volumes/vol1/wwid")
like "another drive has an id" '^[0-9a-f]{8}-[0-9a-f-]{27}$' "$other"
refuse "the ids of the two drives differ" [ "$derived" = "$other" ]
refuse "the disk does not accept the other drive" on c1 "env echo 1 > $initiator/vol1/enable"
like "the device's error has the reason" 'not the one that was connected before' "$(on c1 "cat $initiator/vol1/error")"
refuse "no disk exists" on c1 "[ -e $device ]"
refuse "a second try is refused, too" on c1 "env echo 1 > $initiator/vol1/enable"
must on target 'hcablk target unexport vol1'
export_volume vol1 "$drive" c1
check "the disk accepts the right drive" on c1 "env echo 1 > $initiator/vol1/enable"
disconnect c1 vol1

# Configured ids, and no id.
must on target "hcablk target unexport vol1"
export_volume vol1 "$drive" --wwid=$two c1
connect c1 vol1 --wwid $two
same "a volume's id can be configured" "uuid.$two" "$(on c1 "cat /sys/block/$disk/wwid")"
must on target 'hcablk target unexport --force vol1'
must wait_until c1 30 "grep -q failed $initiator/vol1/state"
export_volume vol1 "$drive" c1
must on target "echo 0 > $target/volumes/vol1/enable && env echo > $target/volumes/vol1/wwid &&
	echo 0 > $target/volumes/vol1/keep_reservations && echo 1 > $target/volumes/vol1/enable"
refuse "a disk with an id does not accept a volume without one" on c1 "env echo > $initiator/vol1/expect_wwid; env echo 1 > $initiator/vol1/enable"
check "a device that was disabled accepts a volume without an id" on c1 "env echo 0 > $initiator/vol1/enable && env echo 1 > $initiator/vol1/enable"
silent "the disk of such a volume has no id" on c1 "cat /sys/block/\$(cat $initiator/vol1/device)/wwid"
