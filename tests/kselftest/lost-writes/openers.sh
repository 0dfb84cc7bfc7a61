#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: a loss of acknowledged writes ends with the close of the last opener, if one opened the disk for writing, or when it is acknowledged, and by nothing else; it is reported, and does not concern a node that lost nothing.
# turn: 10
# takes: 80
# timeout: 600

. "${0%/*}/../lib/lib.sh"
. "${0%/*}/../lib/lost.sh"

# written FILE: one more write is acknowledged, and not flushed
written() {
	must on c1 "dd if=/dev/zero of=$1 bs=64k seek=1024 count=1 oflag=direct conv=notrunc status=none"
}
read_it() {
	on c1 "dd if=$1 of=/dev/null bs=64k count=1 iflag=direct status=none"
}
# The export ends when c1 cannot hear of it: the next one remembers nothing.
lose() {
	must vm link-down target 0
	must state_is c1 vol1 queueing
	must on target 'hcablk target unexport --force vol1'
	must vm link-up target 0
	export_volume vol1 "$drive" --mode=cached c1 c2
	must state_is c1 vol1 live
	same "$1: the disk has lost writes" 1 "$(lost c1 vol1)"
}
# reported VALUES: the uevents since the last call come to be these
reported() {
	local values
	wait_until c1 30 "[ \"\$(sed -n 's/^HCABLK_LOST_WRITES=//p' /tmp/uevents | tr -d '\\n')\" = $1 ]"
	values=$(on c1 "sed -n 's/^HCABLK_LOST_WRITES=//p' /tmp/uevents | tr -d '\\n'; : > /tmp/uevents")
	[ "$values" = "$1" ]
}
# flushes: how many the disk has ended, successfully or not
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
# told begun|ended: the newest event of lost writes comes to be this
told() {
	wait_until c1 30 "jq -es 'map(select(.event == \"lost-writes\" and .source != \"now\")) | last.state == \"$1\"' /tmp/events > /dev/null"
}

# A writer of one partition, a reader of the other.
hold writer c1 w "${device}p1"
hold reader c1 r "${device}p2"
written "${device}p1"
lose "partitions"
check "a uevent reports it" reported 1
check "an event does" told begun
same "check finds it" lost-writes "$(on c1 'hcablk check --json; true' | jq -r '.findings[] | select(.check == "lost-writes" and .status != "ok") | .check')"
before=$(flushes)
same "the writer's flush fails" "$eio" "$(synced writer)"
same "the block layer counts this flush" $((before + 1)) "$(flushes)"
same "so does a flush of the other partition" "$eio" "$(flush c1 "${device}p2")"
same "and one of the disk" "$eio" "$(flush c1 "$device")"
before=$(flushes)
same "the disk takes FUA" 1 "$(on c1 "cat /sys/block/$disk/queue/fua")"
like "a write with FUA fails" "$eio" "$(on c1 "dd if=/dev/zero of=${device}p1 bs=4k count=1 oflag=direct,dsync conv=notrunc 2>&1")"
same "by itself: no flush followed it" "$before" "$(flushes)"
check "reads succeed" read_it "${device}p1"
written "${device}p1"
pass "so do writes"
same "a flush after these writes fails" "$eio" "$(synced writer)"
same "a reader's fsync flushes, too, and fails" "$eio" "$(synced reader)"
release writer
same "the writer has closed its partition, but not the reader of the other" 1 "$(lost c1 vol1)"
same "flushes of a new writer fail" "$eio" "$(flush c1 "${device}p1")"
same "its close is not the last one" 1 "$(lost c1 vol1)"
release reader
same "the last opener has closed the disk: the loss is over" 0 "$(lost c1 vol1)"
check "a uevent reports that, and none has come between" reported 0
check "an event does, too" told ended
silent "check finds nothing any more" on c1 "hcablk check --json | jq -r '.findings[] | select(.check == \"lost-writes\" and .status != \"ok\") | .check'"
must on c1 'kill $(cat /tmp/follower)'
! join events
same "flushes succeed" "done" "$(flush c1 "${device}p1")"

# A writer that sends no flush is not told: the next one is.
hold writer c1 w "$device"
written "$device"
lose "a writer without a flush"
check "without a flush: a uevent reports it" reported 1
release writer
same "the last opener has closed the disk, but no flush has failed: the loss is there" 1 "$(lost c1 vol1)"
same "the flush of the next writer fails" "$eio" "$(flush c1 "$device")"
same "this ends the loss" 0 "$(lost c1 vol1)"
check "a uevent reports the end, too" reported 0

# The writer has gone before the loss.
hold reader c1 r "$device"
written "$device"
lose "a reader"
release reader
same "the reader's close does not end it, since no writer was there" 1 "$(lost c1 vol1)"
check "nor does reading" read_it "$device"
check "nor looking for what it holds" on c1 "blkid -p $device && blockdev --getsz ${device}p1"
same "the loss lasts" 1 "$(lost c1 vol1)"
same "the flush of the next writer fails" "$eio" "$(flush c1 "$device")"
same "its close ends the loss" 0 "$(lost c1 vol1)"
same "flushes succeed" "done" "$(flush c1 "$device")"
check "uevents report both" reported 10

# An exclusive opener is known as the writer, however many others look meanwhile.
hold owner c1 x "$device"
written "$device"
for _ in 1 2 3; do
	must read_it "$device"
done
lose "an exclusive opener"
must read_it "$device"
same "others who close the disk end nothing" 1 "$(lost c1 vol1)"
same "the owner's flush fails" "$eio" "$(synced owner)"
same "list reports it" true "$(on c1 'hcablk list --json' | jq '.devices[0].lost_writes')"
same "and so do the metrics" 'hcablk_disk_lost_writes{disk="vol1"} 1' "$(on c1 'hcablk metrics' | grep '^hcablk_disk_lost_writes')"
like "the attribute takes no 1" "Invalid argument" "$(on c1 "env echo 1 > $initiator/vol1/lost_writes" 2>&1)"
like "nor a word" "Invalid argument" "$(on c1 "env echo no > $initiator/vol1/lost_writes" 2>&1)"
same "which changes nothing" "1 $eio" "$(lost c1 vol1) $(synced owner)"
check "it is acknowledged while the disk is open" on c1 'hcablk acknowledge-loss vol1'
same "the attribute says so" 0 "$(lost c1 vol1)"
same "flushes of who has it open succeed" "done" "$(synced owner)"
check "acknowledging again changes nothing" on c1 "hcablk acknowledge-loss vol1 && env echo 0 > $initiator/vol1/lost_writes"
check "uevents report both, once" reported 10
same "list reports none" false "$(on c1 'hcablk list --json' | jq '.devices[0].lost_writes')"
same "nor do the metrics" 'hcablk_disk_lost_writes{disk="vol1"} 0' "$(on c1 'hcablk metrics' | grep '^hcablk_disk_lost_writes')"
written "$device"
lose "what was written after the acknowledgement"
same "flushes fail" "$eio" "$(synced owner)"
release owner
same "the owner's close ends it, since it opened the disk for writing" 0 "$(lost c1 vol1)"
same "flushes succeed" "done" "$(flush c1 "$device")"
check "uevents report both" reported 10

# Two nodes, and a target that crashes with what its page cache holds.
must on target 'echo 360000 > /proc/sys/vm/dirty_expire_centisecs; echo 0 > /proc/sys/vm/dirty_writeback_centisecs'
disk1=$device
connect c2 vol1 --ctrl-loss-tmo 600
# put GUEST DEVICE WORD BLOCK, word_of GUEST DEVICE BLOCK: past the guest's page cache
put() {
	must on "$1" "yes $3 | dd of=$2 bs=4k count=1 seek=$4 iflag=fullblock oflag=direct conv=notrunc status=none"
}
word_of() {
	on "$1" "dd if=$2 bs=4k count=1 skip=$3 iflag=direct status=none | uniq"
}
put c1 "$disk1" old 8192
put c2 "$device" old 8193
same "all is flushed" "done done" "$(flush c1 "$disk1") $(flush c2 "$device")"
hold one c1 w "$disk1"
hold two c2 w "$device"
put c2 "$device" new 8193
same "one node flushes what it has written" "done" "$(synced two)"
put c1 "$disk1" new 8192
must vm kill target
must state_is c1 vol1 queueing
must state_is c2 vol1 queueing
must vm start target
export_volume vol1 "$drive" --mode=cached c1 c2
must state_is c1 vol1 live
must state_is c2 vol1 live
same "the other node's write is lost, the flushed one is not" "old new" "$(word_of c2 "$device" 8192) $(word_of c2 "$device" 8193)"
same "the state is that of the node that lost something" "1 0" "$(lost c1 vol1) $(lost c2 vol1)"
same "its flushes fail" "$eio" "$(synced one)"
put c2 "$device" end 8193
same "the other node goes on" "done" "$(synced two)"
release two
same "its close is nothing to the first" "1 $eio" "$(lost c1 vol1) $(synced one)"
release one
same "who closes its own disk ends it" "0 done" "$(lost c1 vol1) $(flush c1 "$disk1")"
must on c1 'kill $(cat /tmp/monitor)'
must join monitor
