#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: after a lost connection every flush that covers an acknowledged write which may be lost fails, until the disk is closed; other flushes succeed.
# turn: 8
# takes: 70
# waits: yes
# timeout: 900

. "${0%/*}/../lib/lib.sh"

volume=vol1
state_is() {
	wait_until c1 60 "[ \$(cat $initiator/$volume/state) = $1 ]"
}
# written: makes one more write, which is acknowledged and not flushed
written() {
	on c1 "dd if=/dev/zero of=$device bs=64k count=1 oflag=direct conv=notrunc status=none"
}
flush() {
	on c1 "dd if=/dev/null of=$device conv=fsync,notrunc status=none"
}
lost() {
	on c1 "cat $initiator/$volume/lost_writes"
}

export_volume vol1 "$drive" c1
connect c1 vol1 --ctrl-loss-tmo 600
same "the drive has a volatile write cache" "write back" "$(on c1 "cat /sys/block/$disk/queue/write_cache")"

must written
must vm link-down target 0
must state_is queueing
must vm link-up target 0
check "a cable was cut: the disk is live again" state_is live
check "a flush succeeds when the target still has the acknowledged writes" flush

must written
must on target 'hcablk target unexport --force vol1'
must state_is queueing
export_volume vol1 "$drive" c1
check "the volume was exported again: the disk is live again" state_is live
check "a flush succeeds when the old export ended in order" flush

must written
must vm link-down target 0
must state_is queueing
must on target 'hcablk target unexport --force vol1'
must vm link-up target 0
export_volume vol1 "$drive" c1
check "the export ended unseen: the disk is live again" state_is live
check "the log reports the lost writes, and how to acknowledge them" wait_log c1 30 "the target lost writes that it had acknowledged.*hcablk acknowledge-loss vol1"
same "the attribute lost_writes is 1" 1 "$(lost)"
refuse "the flush of the next writer fails" flush
same "the close of that writer ends the loss" 0 "$(lost)"
check "the next flush succeeds" flush

must written
must vm kill target
must state_is queueing
must vm start target
export_volume vol1 "$drive" c1
check "the target was restarted: the disk is live again" state_is live
check "every flush fails while a writer has the disk open" on c1 "exec 7<> $device
	for n in 1 2 3; do ! dd if=/dev/null of=$device conv=fsync,notrunc status=none || exit 1; done"
check "a flush succeeds after the writer has closed the disk" flush

# Flushed writes are not lost.
must written
check "a write is flushed" flush
must vm kill target
must state_is queueing
must vm start target
export_volume vol1 "$drive" c1
check "the target was restarted again: the disk is live again" state_is live
same "no flushed write was lost" 0 "$(lost)"
check "a flush succeeds when all writes were flushed" flush

must written
must on target 'hcablk target unexport --force vol1'
must state_is queueing
disconnect c1 vol1
export_volume vol1 "$drive" c1
connect c1 vol1 --ctrl-loss-tmo 600
check "a flush of a disk that was connected anew succeeds" flush
disconnect c1 vol1

# The target's page cache reports a failed write-back once, here to a flush whose initiator is gone.
size=$(on target "blockdev --getsz $drive2")
must on target "modprobe dm_mod && printf '0 $size linear $drive2 0\n' | dmsetup create bad"
must on target 'hcablk target unexport vol1'
export_volume bad "/dev/$(on target 'dmsetup info -c --noheadings -o blkdevname bad')" --mode=cached c1
connect c1 bad --ctrl-loss-tmo 600
volume=bad
must written
must on target 'dmsetup suspend --nolockfs bad'
spawn flush c1 "dd if=/dev/null of=$device conv=fsync,notrunc"
# The flush has reached the drive, which delays it.
must wait_until target 30 "awk '/^Writeback:/ { exit !(\$2 > 0) }' /proc/meminfo"
must vm link-down target 0
must state_is queueing
must on target "printf '0 $size error\n' | dmsetup load bad && dmsetup resume bad"
must wait_log target 30 "bad: nothing is left of session"
must on target "dmsetup suspend bad && printf '0 $size linear $drive2 0\n' | dmsetup load bad && dmsetup resume bad"
must vm link-up target 0
check "the drive failed for a while: the disk is live again" state_is live
refuse "the flush that was under way fails" join flush
check "a new write is flushed" wait_until c1 20 "dd if=/dev/zero of=$device bs=64k count=1 oflag=direct conv=notrunc,fsync"

# The export ends in order, but the drive cannot make the acknowledged writes durable.
must written
must on target "dmsetup suspend --nolockfs bad && printf '0 $size error\n' | dmsetup load bad && dmsetup resume bad"
must on target 'hcablk target unexport --force bad'
must state_is queueing
must on target "dmsetup suspend --nolockfs bad && printf '0 $size linear $drive2 0\n' | dmsetup load bad && dmsetup resume bad"
export_volume bad "/dev/$(on target 'dmsetup info -c --noheadings -o blkdevname bad')" --mode=cached c1
check "the drive failed while the export ended: the disk is live again" state_is live
refuse "a flush fails when the drive failed at the export's end" flush
disconnect c1 bad
