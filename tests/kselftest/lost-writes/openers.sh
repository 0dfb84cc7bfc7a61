#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: a loss of acknowledged writes ends when the last opener closes the disk after a failed flush, if one of them opened it for writing, or when it is acknowledged, and in no other way; it is reported, and does not concern hosts that lost nothing.
# turn: 10
# takes: 80
# timeout: 600

. "${0%/*}/../lib/lib.sh"
. "${0%/*}/../lib/lost.sh"

# written FILE: makes one more write, which is acknowledged and not flushed
written() {
	must on c1 "dd if=/dev/zero of=$1 bs=64k seek=1024 count=1 oflag=direct conv=notrunc status=none"
}
read_it() {
	on c1 "dd if=$1 of=/dev/null bs=64k count=1 iflag=direct status=none"
}
# lose "DESCRIPTION": ends the export while c1 is disconnected, so that the next export remembers nothing.
lose() {
	must vm link-down target 0
	must state_is c1 vol1 queueing
	must on target 'hcablk target unexport --force vol1'
	must vm link-up target 0
	export_volume vol1 "$drive" --mode=cached c1 c2
	must state_is c1 vol1 live
	same "$1: the disk has lost writes" 1 "$(lost c1 vol1)"
}
# reported VALUES: waits until the uevents since the last call have these values
reported() {
	local values
	wait_until c1 30 "[ \"\$(sed -n 's/^HCABLK_LOST_WRITES=//p' /tmp/uevents | tr -d '\\n')\" = $1 ]"
	values=$(on c1 "sed -n 's/^HCABLK_LOST_WRITES=//p' /tmp/uevents | tr -d '\\n'; : > /tmp/uevents")
	[ "$values" = "$1" ]
}
# flushes: prints how many flushes the disk has ended, successfully or not
flushes() {
	on c1 "awk '{ print \$16 }' /sys/block/$disk/stat"
}

export_volume vol1 "$drive" --mode=cached c1 c2
connect c1 vol1 --ctrl-loss-tmo 600 --keep-alive-tmo $((1 * slow)) --reconnect-delay 1
must on c1 "printf 'label: gpt\nsize=100M\nsize=100M\n' | sfdisk -q --wipe always $device"
must wait_until c1 30 "[ -b ${device}p2 ]"
ON_SECONDS=600 spawn monitor c1 'echo $$ > /tmp/monitor; exec udevadm monitor --kernel --property --subsystem-match=block > /tmp/uevents'
must wait_until c1 30 'grep -q "the kernel uevent" /tmp/uevents'

ON_SECONDS=600 spawn events c1 'echo $$ > /tmp/follower; exec hcablk events --json > /tmp/events 2> /dev/null'
must wait_until c1 30 'grep -q "\"listening\"" /tmp/events'
# newest_is begun|ended: waits until this is the newest event of lost writes
newest_is() {
	wait_until c1 30 "jq -es 'map(select(.event == \"lost-writes\" and .source != \"now\")) | last.state == \"$1\"' /tmp/events > /dev/null"
}

# A writer has one partition open, a reader the other.
hold writer c1 w "${device}p1"
hold reader c1 r "${device}p2"
written "${device}p1"
lose "partitions"
check "a uevent reports the loss" reported 1
check "an event reports the loss" newest_is begun
same "hcablk check reports the loss" lost-writes "$(on c1 'hcablk check --json; true' | jq -r '.findings[] | select(.check == "lost-writes" and .status != "ok") | .check')"
before=$(flushes)
same "the writer's flush fails" "$eio" "$(synced writer)"
same "the block layer counts the failed flush" $((before + 1)) "$(flushes)"
same "a flush of the other partition fails" "$eio" "$(flush c1 "${device}p2")"
same "a flush of the disk fails" "$eio" "$(flush c1 "$device")"
before=$(flushes)
same "the disk has FUA" 1 "$(on c1 "cat /sys/block/$disk/queue/fua")"
like "a FUA write fails" "$eio" "$(on c1 "dd if=/dev/zero of=${device}p1 bs=4k count=1 oflag=direct,dsync conv=notrunc 2>&1")"
same "the FUA write fails without a flush" "$before" "$(flushes)"
check "a read succeeds after the loss" read_it "${device}p1"
written "${device}p1"
pass "a write succeeds after the loss"
same "a flush after this write fails" "$eio" "$(synced writer)"
same "a reader's fsync flushes, and fails" "$eio" "$(synced reader)"
release writer
same "the loss lasts when the writer has closed its partition" 1 "$(lost c1 vol1)"
same "a flush of a new writer fails" "$eio" "$(flush c1 "${device}p1")"
same "the loss lasts when the new writer has closed its partition" 1 "$(lost c1 vol1)"
release reader
same "the close of the last opener ends the loss" 0 "$(lost c1 vol1)"
check "a uevent reports the end of the loss, and no other came before" reported 0
check "an event reports the end of the loss" newest_is ended
silent "hcablk check reports nothing any more" on c1 "hcablk check --json | jq -r '.findings[] | select(.check == \"lost-writes\" and .status != \"ok\") | .check'"
must on c1 'kill $(cat /tmp/follower)'
! join events
same "a flush succeeds after the loss" "done" "$(flush c1 "${device}p1")"

# A writer that sends no flush does not learn of the loss: the next writer must.
hold writer c1 w "$device"
written "$device"
lose "a writer without a flush"
check "without a flush: a uevent reports the loss" reported 1
release writer
same "without a flush: the close of the last opener does not end the loss" 1 "$(lost c1 vol1)"
same "without a flush: the flush of the next writer fails" "$eio" "$(flush c1 "$device")"
same "without a flush: the close of the next writer ends the loss" 0 "$(lost c1 vol1)"
check "without a flush: a uevent reports the end of the loss" reported 0

# The writer has closed the disk before the loss.
hold reader c1 r "$device"
written "$device"
lose "a reader"
release reader
same "the loss lasts when a reader has closed the disk" 1 "$(lost c1 vol1)"
check "reads succeed while the loss lasts" read_it "$device"
check "a search for partitions succeeds while the loss lasts" on c1 "blkid -p $device && blockdev --getsz ${device}p1"
same "reads and searches do not end the loss" 1 "$(lost c1 vol1)"
same "after a reader: the flush of the next writer fails" "$eio" "$(flush c1 "$device")"
same "after a reader: the close of the next writer ends the loss" 0 "$(lost c1 vol1)"
same "after a reader: a flush succeeds" "done" "$(flush c1 "$device")"
check "after a reader: uevents report the loss and its end" reported 10

# An exclusive opener counts as the writer, regardless of other openers meanwhile.
hold owner c1 x "$device"
written "$device"
for _ in 1 2 3; do
	must read_it "$device"
done
lose "an exclusive opener"
must read_it "$device"
same "the loss lasts when other openers have closed the disk" 1 "$(lost c1 vol1)"
same "the exclusive owner's flush fails" "$eio" "$(synced owner)"
same "hcablk list reports the loss" true "$(on c1 'hcablk list --json' | jq '.devices[0].lost_writes')"
same "hcablk metrics reports the loss" 'hcablk_disk_lost_writes{disk="vol1"} 1' "$(on c1 'hcablk metrics' | grep '^hcablk_disk_lost_writes')"
like "the attribute refuses 1" "Invalid argument" "$(on c1 "env echo 1 > $initiator/vol1/lost_writes" 2>&1)"
like "the attribute refuses a word" "Invalid argument" "$(on c1 "env echo no > $initiator/vol1/lost_writes" 2>&1)"
same "refused values do not end the loss" "1 $eio" "$(lost c1 vol1) $(synced owner)"
check "the loss can be acknowledged while the disk is open" on c1 'hcablk acknowledge-loss vol1'
same "the attribute lost_writes is 0" 0 "$(lost c1 vol1)"
same "the owner's flush succeeds after the acknowledgement" "done" "$(synced owner)"
check "a second acknowledgement changes nothing" on c1 "hcablk acknowledge-loss vol1 && env echo 0 > $initiator/vol1/lost_writes"
check "uevents report the loss and its end once" reported 10
same "hcablk list reports no loss" false "$(on c1 'hcablk list --json' | jq '.devices[0].lost_writes')"
same "hcablk metrics reports no loss" 'hcablk_disk_lost_writes{disk="vol1"} 0' "$(on c1 'hcablk metrics' | grep '^hcablk_disk_lost_writes')"
written "$device"
lose "a write after the acknowledgement"
same "after the acknowledgement: a flush fails" "$eio" "$(synced owner)"
release owner
same "after the acknowledgement: the owner's close ends the loss" 0 "$(lost c1 vol1)"
same "after the acknowledgement: a flush succeeds" "done" "$(flush c1 "$device")"
check "after the acknowledgement: uevents report the loss and its end" reported 10

# Two hosts, and a target that crashes with dirty pages.
must on target 'echo 360000 > /proc/sys/vm/dirty_expire_centisecs; echo 0 > /proc/sys/vm/dirty_writeback_centisecs'
disk1=$device
connect c2 vol1 --ctrl-loss-tmo 600
# put GUEST DEVICE WORD BLOCK, word_of GUEST DEVICE BLOCK: write and print a block, bypassing the guest's page cache
put() {
	must on "$1" "yes $3 | dd of=$2 bs=4k count=1 seek=$4 iflag=fullblock oflag=direct conv=notrunc status=none"
}
word_of() {
	on "$1" "dd if=$2 bs=4k count=1 skip=$3 iflag=direct status=none | uniq"
}
put c1 "$disk1" old 8192
put c2 "$device" old 8193
same "both hosts flush their writes" "done done" "$(flush c1 "$disk1") $(flush c2 "$device")"
hold one c1 w "$disk1"
hold two c2 w "$device"
put c2 "$device" new 8193
same "one host flushes its second write" "done" "$(synced two)"
put c1 "$disk1" new 8192
must vm kill target
must state_is c1 vol1 queueing
must state_is c2 vol1 queueing
must vm start target
export_volume vol1 "$drive" --mode=cached c1 c2
must state_is c1 vol1 live
must state_is c2 vol1 live
same "the other host's second write is lost, the flushed one is not" "old new" "$(word_of c2 "$device" 8192) $(word_of c2 "$device" 8193)"
same "only the host that lost a write has lost_writes set" "1 0" "$(lost c1 vol1) $(lost c2 vol1)"
same "the flush of the host that lost a write fails" "$eio" "$(synced one)"
put c2 "$device" end 8193
same "the flush of the other host succeeds" "done" "$(synced two)"
release two
same "the other host's close does not end the loss" "1 $eio" "$(lost c1 vol1) $(synced one)"
release one
same "the loss ends when its host closes the disk" "0 done" "$(lost c1 vol1) $(flush c1 "$disk1")"
must on c1 'kill $(cat /tmp/monitor)'
must join monitor
