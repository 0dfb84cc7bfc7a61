#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: the target tears down the sessions of a host that have no volume or several ones on one workqueue, and those of another host on a different one.
# turn: 20
# takes: 25
# skips: siw

. "${0%/*}/../lib/lib.sh"

[ "$rdma" = rxe ] || skip "the program's library speaks soft-RoCE only"

export_volume vol1 "$drive" c1 c2
export_volume vol2 "$drive2" c1 c2

# begin_session CLIENT SESSION: begins a session without a volume.
begin_session() {
	must on "$1" "rm -f /tmp/words /tmp/said /tmp/stop; mkfifo /tmp/words; { while ! [ -e /tmp/stop ]; do usleep 100000; done; } > /tmp/words &
		hcablk-attach $target_address 7744 $(host_id "$1") $2 < /tmp/words > /tmp/said 2>&1 &
		until [ -s /tmp/said ]; do usleep 10000; done"
	same "$1: session $2 begins without a volume" session "$(on "$1" 'cat /tmp/said')"
}

# ask CLIENT WORDS: sends a command to the session's program, and prints its answer.
ask() {
	on "$1" "n=\$(wc -l < /tmp/said); echo ${*:2} > /tmp/words; until [ \$(wc -l < /tmp/said) -gt \$n ]; do usleep 10000; done; tail -n 1 /tmp/said"
}

# place CLIENT SESSION [several]: begins a session, attaches two volumes to it if `several`, ends it, and sets $place, the workqueue of its
# teardown.
place() {
	must on target "echo > $tracing/trace"
	begin_session "$1" "$2"
	if [ "${3:-}" = several ]; then
		like "$1: session $2 has the first volume" 'attached 0' "$(ask "$1" attach vol1 "${2}1" 1)"
		like "$1: session $2 has the second volume" 'attached 1' "$(ask "$1" attach vol2 "${2}2" 1)"
	fi
	must on "$1" 'touch /tmp/stop'
	must wait_until target 60 "grep -q ' workqueue=hcablk_ends_' $tracing/trace"
	place=$(on target "sed -n 's/.* workqueue=\\(hcablk_ends_[0-9]*\\) .*/\\1/p' $tracing/trace" | uniq)
	like "$1: session $2 ends on one of the workqueues" '^hcablk_ends_[0-9]+$' "$place"
}

tracing=/sys/kernel/tracing
must on target "cd $tracing/events/workqueue/workqueue_queue_work && echo 'workqueue ~ \"hcablk_ends_*\"' > filter && echo 1 > enable"
place c1 4711000b1
first=$place
place c1 4711000b2
same "a second session of the host ends on the same workqueue" "$first" "$place"
place c1 4711000b3 several
same "a session of two volumes ends on the host's workqueue" "$first" "$place"
place c2 4711000b4
refuse "a session of another host ends on a different workqueue" [ "$first" = "$place" ]
must on target "cd $tracing/events/workqueue/workqueue_queue_work && echo 0 > enable && echo 0 > filter && echo > $tracing/trace"
