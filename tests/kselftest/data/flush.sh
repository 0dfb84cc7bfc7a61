#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: flushes and writes with FUA reach the target's drive as such, and only they.
# tier: heart
# turn: 5
# takes: 10

. "${0%/*}/../lib/lib.sh"

share c1
trace=/sys/kernel/tracing
# What the drive gets, as block_rq_issue shows it: W a write, F behind it FUA, FF a flush.
commands() {
	on target "cat $trace/trace" | sed -nE 's/.*block_rq_issue: [0-9]+,[0-9]+ ([A-Z]+) .*/\1/p' |
		grep -v R | sort | uniq | tr '\n' ' '
}
must on target "echo 1 > $trace/events/block/block_rq_issue/enable; echo > $trace/trace"
must on c1 "dd if=/dev/zero of=$device bs=4k count=4 oflag=direct"
same "a plain write is neither" "WS " "$(commands)"
flushes=$(stat_of target $target/volumes/vol1 flushes)

must on target "echo > $trace/trace"
must on c1 "dd if=/dev/zero of=$device bs=4k count=1 oflag=direct,dsync"
like "a write that has to be durable has FUA" 'WFS' "$(commands)"

must on target "echo > $trace/trace"
flushes=$(stat_of target $target/volumes/vol1 flushes)
must on c1 "dd if=/dev/zero of=$device bs=4k count=1 oflag=direct conv=fsync"
like "a flush is a flush" 'FF' "$(commands)"
less "and the target counts it" "$flushes" "$(stat_of target $target/volumes/vol1 flushes)"
less "as does the client" 0 "$(stat_of c1 $initiator/vol1 flushes)"
check "fio with a flush after every fourth write" fio c1 "--name=v --filename=$device --rw=randwrite --bs=4k \
	--iodepth=8 --fsync=4 --size=$(few 1)M --verify=crc32c --verify_fatal=1"
