#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: mode cached reads data again without the drive, a flush or FUA writes it to the drive, and each host gets one error for lost data.
# tier: heart
# turn: 18
# takes: 20
# timeout: 480

. "${0%/*}/../lib/lib.sh"

trace=/sys/kernel/tracing
# Prints the kinds of requests that the drive got: R, W, and with them F for FUA; FF is a flush.
commands() {
	on target "cat $trace/trace" | sed -nE 's/.*block_rq_issue: [0-9]+,[0-9]+ ([A-Z]+) .*/\1/p' | sort | uniq | tr '\n' ' '
}
forget() {
	must on target "echo > $trace/trace"
}

export_volume vol1 "$drive" --mode=cached c1 c2
connect c1 vol1
same "a cached volume has a cache to flush" "write back" "$(on c1 "cat /sys/block/$disk/queue/write_cache")"
# The kernel writes dirty pages back after a while; not in this test.
must on target "echo 360000 > /proc/sys/vm/dirty_expire_centisecs; echo 0 > /proc/sys/vm/dirty_writeback_centisecs
	echo 1 > $trace/events/block/block_rq_issue/enable"
forget
must on c1 "dd if=/dev/zero of=$device bs=64k count=4 oflag=direct"
silent "a cached write does not reach the drive" commands
must on c1 "dd if=$device of=/dev/null bs=64k count=4 iflag=direct"
silent "reading cached data does not reach the drive" commands
must on c1 "dd if=/dev/zero of=$device bs=4k count=1 oflag=direct conv=fsync"
like "a flush writes the data to the drive" "W" "$(commands)"
same "a flush leaves nothing dirty" 0 "$(on target "awk '/^Dirty:/ { print (\$2 > 200) }' /proc/meminfo")"
forget
must on c1 "dd if=/dev/zero of=$device bs=4k count=1 oflag=direct,dsync"
like "a FUA write reaches the drive" "W" "$(commands)"

# The administrator of the target sets the read-ahead.
forget
must on target "echo 1024 > /sys/block/\$(readlink $drive)/queue/read_ahead_kb; blockdev --flushbufs $drive; echo 3 > /proc/sys/vm/drop_caches"
must on c1 "dd if=$device of=/dev/null bs=4k skip=4096 count=8 iflag=direct"
like "the target reads ahead of sequential reads" "R" "$(commands)"
less "eight sequential blocks take fewer reads of the drive" "$(on target "grep -c 'block_rq_issue: .* R' $trace/trace")" 8
must on target "echo 128 > /sys/block/\$(readlink $drive)/queue/read_ahead_kb
	echo 3000 > /proc/sys/vm/dirty_expire_centisecs; echo 500 > /proc/sys/vm/dirty_writeback_centisecs
	echo 0 > $trace/events/block/block_rq_issue/enable"
disconnect c1 vol1
must on target 'hcablk target unexport vol1'

# A drive that loses writes that the page cache has accepted.
size=65536
must on target "modprobe dm_mod && printf '0 $size linear $drive2 0\n' | dmsetup create bad"
export_volume bad "/dev/$(on target 'dmsetup info -c --noheadings -o blkdevname bad')" --mode=cached c1 c2
connect c1 bad
disk1=$device
connect c2 bad
must on target "dmsetup suspend bad && printf '0 $size error\n' | dmsetup load bad && dmsetup resume bad"
check "a cached write to a dead drive is accepted" on c1 "dd if=/dev/zero of=$disk1 bs=4k count=1 oflag=direct"
refuse "the flush after the lost write fails" on c1 "dd if=/dev/null of=$disk1 conv=fsync,notrunc bs=4k; \
	dd if=/dev/zero of=$disk1 bs=4k seek=1 count=1 oflag=direct conv=fsync"
refuse "the other client's flush fails, too" on c2 "dd if=/dev/zero of=$device bs=4k seek=2 count=1 oflag=direct conv=fsync"
must on target "dmsetup suspend bad && printf '0 $size linear $drive2 0\n' | dmsetup load bad && dmsetup resume bad"
# One more flush fails, for writes while the drive was dead.
check "flushes succeed again when the drive works" wait_until c1 60 "dd if=/dev/zero of=$disk1 bs=4k count=4 oflag=direct conv=fsync"

# A flush meets a loss, and then its queue pair is replaced: its response never leaves, and the flush is sent again. Until a
# response with the error was sent, every flush fails.
disconnect c1 bad
disconnect c2 bad
connect c1 bad --io-timeout $((4 * slow)) --connect-timeout 60
pairs=$(queue_pairs c1)
must on c1 "dd if=/dev/zero of=$device bs=64k count=4 oflag=direct"
must on target 'dmsetup suspend --nolockfs bad'
spawn flush c1 "dd if=/dev/null of=$device conv=fsync,notrunc"
check "a flush that the drive holds back has its queue replaced" \
	wait_until c1 $((20 * slow)) "[ \$(rdma resource show qp | grep -vc 'type GSI') -gt $pairs ]"
must on target "printf '0 $size error\n' | dmsetup load bad && dmsetup resume bad"
refuse "the flush that is sent again fails, though the page cache has reported the loss already" join flush
same "the flush was sent again on another queue pair" 1 "$(stat_of c1 $initiator/bad replaced_queues)"
must on target "dmsetup suspend bad && printf '0 $size linear $drive2 0\n' | dmsetup load bad && dmsetup resume bad"
must on c1 "dd if=/dev/zero of=$device bs=4k count=4 oflag=direct"
check "a loss that was reported is not reported again" wait_until c1 60 "dd if=/dev/null of=$device conv=fsync,notrunc"
