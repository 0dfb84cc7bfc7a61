#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: over a lost connection no flush succeeds that covers a write which was acknowledged and may be gone, until the disk is closed; others do.
# turn: 8
# takes: 70
# waits: yes
# timeout: 900

. "${0%/*}/../lib/lib.sh"

volume=vol1
state_is() {
	wait_until c1 60 "[ \$(cat $initiator/$volume/state) = $1 ]"
}
# written: one more write is acknowledged, and not flushed
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
check "a cable was cut: it is connected again" state_is live
check "the target remembers: a flush succeeds" flush

must written
must on target 'hcablk target unexport --force vol1'
must state_is queueing
export_volume vol1 "$drive" c1
check "the export was another one: it is connected again" state_is live
check "but the last one ended in order, and has forgotten nothing: a flush succeeds" flush

must written
must vm link-down target 0
must state_is queueing
must on target 'hcablk target unexport --force vol1'
must vm link-up target 0
export_volume vol1 "$drive" c1
check "the export ended unseen: it is connected again" state_is live
check "why is told, with what to do" wait_log c1 30 "the target lost writes that it had acknowledged.*hcablk acknowledge-loss vol1"
same "the attribute says so" 1 "$(lost)"
refuse "nobody had it open: the flush of the next writer fails" flush
same "who closed it: the loss is over" 0 "$(lost)"
check "a flush succeeds" flush

must written
must vm kill target
must state_is queueing
must vm start target
export_volume vol1 "$drive" c1
check "the target was restarted: it is connected again" state_is live
check "while a writer has it open every flush fails" on c1 "exec 7<> $device
	for n in 1 2 3; do ! dd if=/dev/null of=$device conv=fsync,notrunc status=none || exit 1; done"
check "then it is closed: a flush succeeds" flush

# What was flushed, or not written, is not lost.
must written
check "a write is flushed" flush
must vm kill target
must state_is queueing
must vm start target
export_volume vol1 "$drive" c1
check "the target was restarted once more: it is connected again" state_is live
same "nothing was lost" 0 "$(lost)"
check "a flush succeeds, since nothing was left to flush" flush

must written
must on target 'hcablk target unexport --force vol1'
must state_is queueing
disconnect c1 vol1
export_volume vol1 "$drive" c1
connect c1 vol1 --ctrl-loss-tmo 600
check "a disk that is made anew has nothing to lose" flush
disconnect c1 vol1

# The page cache of the target tells once that a write-back failed, here to a flush whose initiator has gone.
size=$(on target "blockdev --getsz $drive2")
must on target "modprobe dm_mod && printf '0 $size linear $drive2 0\n' | dmsetup create bad"
must on target 'hcablk target unexport vol1'
export_volume bad "/dev/$(on target 'dmsetup info -c --noheadings -o blkdevname bad')" --mode=cached c1
connect c1 bad --ctrl-loss-tmo 600
volume=bad
must written
must on target 'dmsetup suspend --nolockfs bad'
spawn flush c1 "dd if=/dev/null of=$device conv=fsync,notrunc"
# It has reached the drive, which holds it back.
must wait_until target 30 "awk '/^Writeback:/ { exit !(\$2 > 0) }' /proc/meminfo"
must vm link-down target 0
must state_is queueing
must on target "printf '0 $size error\n' | dmsetup load bad && dmsetup resume bad"
must wait_log target 30 "bad: nothing is left of session"
must on target "dmsetup suspend bad && printf '0 $size linear $drive2 0\n' | dmsetup load bad && dmsetup resume bad"
must vm link-up target 0
check "the drive failed meanwhile, and is well again: it is connected again" state_is live
refuse "the flush that was under way fails" join flush
check "what is written again is flushed" wait_until c1 20 "dd if=/dev/zero of=$device bs=64k count=1 oflag=direct conv=notrunc,fsync"

# In order, but what was acknowledged cannot be made durable.
must written
must on target "dmsetup suspend --nolockfs bad && printf '0 $size error\n' | dmsetup load bad && dmsetup resume bad"
must on target 'hcablk target unexport --force bad'
must state_is queueing
must on target "dmsetup suspend --nolockfs bad && printf '0 $size linear $drive2 0\n' | dmsetup load bad && dmsetup resume bad"
export_volume bad "/dev/$(on target 'dmsetup info -c --noheadings -o blkdevname bad')" --mode=cached c1
check "the drive failed while the export ended: it is connected again" state_is live
refuse "a flush fails" flush
disconnect c1 bad
