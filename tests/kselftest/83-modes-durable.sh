#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: cached data is read again without the drive and is on it after a flush or with FUA; what is lost is told to each.
# group: modes
# timeout: 300

. "${0%/*}/lib.sh"

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
same "a cached write is not the drive's" "" "$(commands)"
must on c1 "dd if=$device of=/dev/null bs=64k count=4 iflag=direct"
same "nor is reading it" "" "$(commands)"
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
on c1 "dd if=/dev/zero of=$disk1 bs=4k count=4 oflag=direct conv=fsync" >&2
check "when the drive is well, so are flushes" on c1 "dd if=/dev/zero of=$disk1 bs=4k count=4 oflag=direct conv=fsync"
