#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: a device that never flushes delays a session's end by the time of one queue pair, regardless of their number, and does not touch the session's memory afterwards.
# turn: 9
# takes: 170
# guests: hca
# timeout: 2000
# waits: yes
# expect-log: BUG: (send|receive) queue did not drain

. "${0%/*}/../lib/lib.sh"
. "${0%/*}/../lib/hca.sh"

# begin OPTION…: puts load on a disk, and then lets neither device flush work requests of a queue pair in error.
begin() {
	connect c1 vol1 "$@"
	start_load load c1 "$device"
	for dev in hca0 hca1; do
		knob $dev no_flush 1
	done
	knob hca0 fail_wr 1
}

# ended WHAT: checks that the load has ended, and that both sides end the session.
ended() {
	ends_within load 120000 "$1"
	check "$1: the client disconnects" wait_until c1 60 'hcablk disconnect --if-exists vol1'
	check "$1: the target ends the session" wait_until target 180 "[ -z \"\$(cat $target/volumes/vol1/clients)\" ]"
	check "$1: no queue pair is left" wait_until c1 60 "$no_queue_pairs"
}

flush() {
	for dev in hca0 hca1; do
		knob $dev no_flush 0
	done
}

# timed WHAT OPTION…: begins and ends such a session, and sets $took to its milliseconds.
timed() {
	local from
	from=$(now_ms)
	begin "${@:2}"
	ended "$1"
	took=$(($(now_ms) - from))
	echo "# $1: $took ms"
	flush
}

hca_pair
export_volume vol1 "$drive" c1
timed "one queue pair" --queues 1
# The most queue pairs of a guest with two processors.
timed "four queue pairs" --queues 2 --poll-queues 2
# Each side waits 30 s for its first queue pair, perhaps one side after the other. A side that waited for its five (four, and
# the admin queue pair) in turn would take 150 s.
within "the five queue pairs of a side drain within the time of one" "$took" 120000
for side in send receive; do
	like "the log reports that $side queues did not drain" "$side queue did not drain" "$(in_log c1 "$side queue did not drain")"
done

# The flushes are only late: no memory must be taken from the device.
reports=$(in_log c1 'queue did not drain' | wc -l)
begin --queues 2 --poll-queues 2
# Four queue pairs of each side, and the admin queue pairs.
must wait_until c1 60 '[ $(rdma resource show qp | grep -c "state ERR") = 10 ]'
flush
ended "late flushes"
same "the log has no further queue that did not drain" "$reports" "$(in_log c1 'queue did not drain' | wc -l)"

connect c1 vol1 --queues 2 --poll-queues 2
check "the disk works again" on c1 "hcablk-scatter $device random $RANDOM 8"
for dev in hca0 hca1; do
	same "$dev made no access outside its memory regions" 0 "$(counted $dev dma_faults)"
done
hca_end
