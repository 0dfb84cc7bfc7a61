#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: flushes and FUA writes reach the target's drive as such, and no other request does.
# tier: heart
# turn: 5
# takes: 10

. "${0%/*}/../lib/lib.sh"

share c1
trace=/sys/kernel/tracing
# commands: prints the drive's commands as block_rq_issue shows them: W a write, followed by F a FUA write, FF a flush.
commands() {
	on target "cat $trace/trace" | sed -nE 's/.*block_rq_issue: [0-9]+,[0-9]+ ([A-Z]+) .*/\1/p' |
		grep -v R | sort | uniq | tr '\n' ' '
}
must on target "echo 1 > $trace/events/block/block_rq_issue/enable; echo > $trace/trace"
must on c1 "dd if=/dev/zero of=$device bs=4k count=4 oflag=direct"
same "a plain write has no FUA and no flush" "WS " "$(commands)"
flushes=$(stat_of target $target/volumes/vol1 flushes)

must on target "echo > $trace/trace"
must on c1 "dd if=/dev/zero of=$device bs=4k count=1 oflag=direct,dsync"
like "a synchronous write has FUA" 'WFS' "$(commands)"

must on target "echo > $trace/trace"
flushes=$(stat_of target $target/volumes/vol1 flushes)
must on c1 "dd if=/dev/zero of=$device bs=4k count=1 oflag=direct conv=fsync"
like "an fsync sends a flush to the drive" 'FF' "$(commands)"
less "the target counts the flush" "$flushes" "$(stat_of target $target/volumes/vol1 flushes)"
less "the client counts the flush" 0 "$(stat_of c1 $initiator/vol1 flushes)"
check "fio verifies writes with a flush after every fourth" fio c1 "--name=v --filename=$device --rw=randwrite --bs=4k \
	--iodepth=8 --fsync=4 --size=$(few 1)M --verify=crc32c --verify_fatal=1"
