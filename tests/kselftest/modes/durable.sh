#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: cached data is read again without the drive and is on it after a flush or with FUA; what is lost is told to each.
# tier: heart
# turn: 18
# takes: 20
# timeout: 480

. "${0%/*}/../lib/lib.sh"

trace=/sys/kernel/tracing
# What the drive gets: R, W, and with them F for FUA; FF is a flush.
commands() {
	on target "cat $trace/trace" | sed -nE 's/.*block_rq_issue: [0-9]+,[0-9]+ ([A-Z]+) .*/\1/p' | sort | uniq | tr '\n' ' '
}
forget() {
	must on target "echo > $trace/trace"
}

export_volume vol1 "$drive" --mode=cached c1 c2
connect c1 vol1
same "a cached volume has a cache to flush" "write back" "$(on c1 "cat /sys/block/$disk/queue/write_cache")"
# The kernel writes what is dirty after a while; not in this test.
must on target "echo 360000 > /proc/sys/vm/dirty_expire_centisecs; echo 0 > /proc/sys/vm/dirty_writeback_centisecs
	echo 1 > $trace/events/block/block_rq_issue/enable"
forget
must on c1 "dd if=/dev/zero of=$device bs=64k count=4 oflag=direct"
silent "a cached write is not the drive's" commands
must on c1 "dd if=$device of=/dev/null bs=64k count=4 iflag=direct"
silent "nor is reading it" commands
must on c1 "dd if=/dev/zero of=$device bs=4k count=1 oflag=direct conv=fsync"
like "a flush brings it there" "W" "$(commands)"
same "all of it" 0 "$(on target "awk '/^Dirty:/ { print (\$2 > 200) }' /proc/meminfo")"
forget
must on c1 "dd if=/dev/zero of=$device bs=4k count=1 oflag=direct,dsync"
like "so does FUA" "W" "$(commands)"

# Read-ahead is the target's administrator's.
forget
must on target "echo 1024 > /sys/block/\$(readlink $drive)/queue/read_ahead_kb; blockdev --flushbufs $drive; echo 3 > /proc/sys/vm/drop_caches"
must on c1 "dd if=$device of=/dev/null bs=4k skip=4096 count=8 iflag=direct"
like "reading in order makes the target read ahead" "R" "$(commands)"
less "eight blocks in order are fewer reads of the drive" "$(on target "grep -c 'block_rq_issue: .* R' $trace/trace")" 8
must on target "echo 128 > /sys/block/\$(readlink $drive)/queue/read_ahead_kb
	echo 3000 > /proc/sys/vm/dirty_expire_centisecs; echo 500 > /proc/sys/vm/dirty_writeback_centisecs
	echo 0 > $trace/events/block/block_rq_issue/enable"
disconnect c1 vol1
must on target 'hcablk target unexport vol1'

# A drive that loses what the page cache has taken.
size=65536
must on target "modprobe dm_mod && printf '0 $size linear $drive2 0\n' | dmsetup create bad"
export_volume bad "/dev/$(on target 'dmsetup info -c --noheadings -o blkdevname bad')" --mode=cached c1 c2
connect c1 bad
disk1=$device
connect c2 bad
must on target "dmsetup suspend bad && printf '0 $size error\n' | dmsetup load bad && dmsetup resume bad"
check "a cached write to a drive that is dead is taken" on c1 "dd if=/dev/zero of=$disk1 bs=4k count=1 oflag=direct"
refuse "the flush after it is not" on c1 "dd if=/dev/null of=$disk1 conv=fsync,notrunc bs=4k; \
	dd if=/dev/zero of=$disk1 bs=4k seek=1 count=1 oflag=direct conv=fsync"
refuse "and the other client is told, too" on c2 "dd if=/dev/zero of=$device bs=4k seek=2 count=1 oflag=direct conv=fsync"
must on target "dmsetup suspend bad && printf '0 $size linear $drive2 0\n' | dmsetup load bad && dmsetup resume bad"
# What was written while it was not is told by one more flush.
check "when the drive is well, so are flushes" wait_until c1 60 "dd if=/dev/zero of=$disk1 bs=4k count=4 oflag=direct conv=fsync"

# A flush learns of a loss, and then its queue pair is replaced: its answer never leaves, and it is sent again. As long as no
# answer was sent that told of the loss, every flush fails.
disconnect c1 bad
disconnect c2 bad
connect c1 bad --io-timeout $((4 * slow)) --connect-timeout 60
pairs=$(queue_pairs c1)
must on c1 "dd if=/dev/zero of=$device bs=64k count=4 oflag=direct"
must on target 'dmsetup suspend --nolockfs bad'
spawn flush c1 "dd if=/dev/null of=$device conv=fsync,notrunc"
check "the queue of a flush that the drive holds back is replaced" \
	wait_until c1 $((20 * slow)) "[ \$(rdma resource show qp | grep -vc 'type GSI') -gt $pairs ]"
must on target "printf '0 $size error\n' | dmsetup load bad && dmsetup resume bad"
refuse "the flush that is sent again fails, although the page cache has told of the loss before" join flush
same "on another queue pair" 1 "$(stat_of c1 $initiator/bad replaced_queues)"
must on target "dmsetup suspend bad && printf '0 $size linear $drive2 0\n' | dmsetup load bad && dmsetup resume bad"
must on c1 "dd if=/dev/zero of=$device bs=4k count=4 oflag=direct"
check "what was told is told no more" wait_until c1 60 "dd if=/dev/null of=$device conv=fsync,notrunc"
