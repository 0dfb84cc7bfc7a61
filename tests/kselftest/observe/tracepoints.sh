#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: tracepoints on both sides report each request, queue and session, in order and with the same numbers.
# tier: heart
# turn: 6
# takes: 15

. "${0%/*}/../lib/lib.sh"

tracing=/sys/kernel/tracing
# listen GUEST SYSTEM 0|1
listen() {
	must on "$1" "echo $3 > $tracing/events/$2/enable"
}
# seen GUEST PATTERN: prints events whose line matches, as "NAME FIELDS"
seen() {
	on "$1" "sed -n '/^#/d; s/.*: \\(hcablk[a-z_]*\\): \\(.*\\)/\\1 \\2/p' $tracing/trace" | grep -E -- "$2"
}
# names LINES: prints the names of the events, in order
names() {
	awk '{ printf "%s ", $1 }' <<< "$1"
}
# field NAME LINES: prints the different values of the field, in order of appearance
field() {
	awk -v f="$1=" '{ for (i = 2; i <= NF; i++) if (index($i, f) == 1 && !seen[$i]++) printf "%s ", substr($i, length(f) + 1) }' <<< "$2"
}

export_volume vol1 "$drive" c1
must on c1 'modprobe hcablk'
listen c1 hcablk 1
listen target hcablk_target 1
connect c1 vol1 --queues 1 --small-write 0
must on c1 "echo none > /sys/block/$disk/queue/scheduler"

for guest in c1 target; do
	[ $guest = c1 ] && event=hcablk || event=hcablk_target
	same "$guest's queues connect and go live" "connecting live " "$(field state "$(seen $guest "^${event}_queue .* queue=0 ")")"
	like "$guest's session connects and goes live" '^(connecting )?live $' "$(field state "$(seen $guest "^${event}_session ")")"
done
session=$(field session "$(seen c1 '^hcablk_session ')")
same "both sides report the same session" "$session" "$(field session "$(seen target '^hcablk_target_session ')")"

# request WHAT SECTOR BYTES WAY: checks the events of one request on both sides
request() {
	local what=$1 sector=$2 bytes=$3 way=$4 here there
	# A target finds the completion of a response's send when it polls for something else.
	must wait_until target 60 "grep -q 'hcablk_target_completed: .* sector=$sector ' $tracing/trace"
	here=$(seen c1 " sector=$sector ")
	# Test observe/pictures checks the events of chunks.
	there=$(seen target " sector=$sector " | grep -v '^hcablk_target_chunk_')
	same "a $what of $bytes: the client reports its events in order" "hcablk_queued hcablk_sent hcablk_answered hcablk_completed " "$(names "$here")"
	same "a $what of $bytes: the target reports its events in order" "hcablk_target_received hcablk_target_drive_start hcablk_target_drive_end hcablk_target_answered hcablk_target_completed " "$(names "$there")"
	same "a $what of $bytes: the client reports operation, length and status" "$what $bytes 0 " "$(field op "$here")$(field bytes "$here")$(field status "$here")"
	same "a $what of $bytes: the target reports operation, length and status" "$what $bytes 0 " "$(field op "$there")$(field bytes "$there")$(field status "$there")"
	same "a $what of $bytes: both report the same session and queue" "$session$(field queue "$here")" "$(field session "$there")$(field queue "$there")"
	same "a $what of $bytes: the target reports its data path" "$way " "$(field way "$there")"
	same "a $what of $bytes: the client reports the same data path" "$way " "$(field way "$(grep '^hcablk_sent ' <<< "$here")")"
	same "a $what of $bytes: both report the same number" "$(field number "$(grep '^hcablk_sent ' <<< "$here")")" "$(field number "$there")"
	[ "$way" = eager ] ||
		same "a $what of $bytes: both report the same tag and generation" "$(field tag "$here")$(field generation "$here")" "$(field tag "$there")$(field generation "$there")"
}

# The target grants its memory in its first response.
must on c1 "dd if=/dev/zero of=$device bs=64k seek=3 count=1 oflag=direct"
must on c1 "dd if=/dev/zero of=$device bs=4k seek=1001 count=1 oflag=direct"
must on c1 "dd if=$device of=/dev/null bs=64k skip=5 count=1 iflag=direct"
must on c1 "dd if=$device of=/dev/null bs=512k skip=7 count=1 iflag=direct"
must on c1 "dd if=/dev/zero of=$device bs=512k seek=9 count=1 oflag=direct"
must on c1 "dd if=$device of=/dev/null bs=4k skip=1003 count=1 iflag=direct"
# These are answered on the same queue, later.
for ((i = 0; i < 4; i++)); do
	must on c1 "dd if=$device of=/dev/null bs=4k skip=$((5000 + i)) count=1 iflag=direct"
done
request write 384 65536 key
request write 8008 4096 eager
request read 640 65536 key
request read 7168 524288 key
request write 9216 524288 key
small=key
[ "$rdma" = siw ] || small=immediate
request read 8024 4096 $small

before=$(seen c1 . | grep -c sector=)
listen c1 hcablk 0
must on c1 "dd if=$device of=/dev/null bs=64k count=20 iflag=direct"
same "a switched-off tracepoint reports nothing" "$before" "$(seen c1 . | grep -c sector=)"
listen c1 hcablk 1

# A session that ends without being asked to.
must on target "hcablk target unexport --force vol1"
must wait_until c1 30 "grep -q failed $initiator/vol1/state"
must wait_until target 30 "grep -q 'hcablk_target_session: .* state=ended' $tracing/trace"
here=$(seen c1 '^hcablk_session ')
same "the client reports the end of its session" "connecting live ending ended " "$(field state "$here")"
like "the client reports the error that ended its session" "^0 -[0-9]+ $" "$(field error "$here")"
same "the client reports the end of its queues" "connecting live ending ended " "$(field state "$(seen c1 '^hcablk_queue .* queue=0 ')")"
same "the target reports the end of its session" "live ending ended " "$(field state "$(seen target '^hcablk_target_session ')")"
same "the target reports the end of its queues" "connecting live ending ended " "$(field state "$(seen target '^hcablk_target_queue .* queue=0 ')")"
