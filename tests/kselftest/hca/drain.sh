#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: a device that never flushes keeps a session's end up for the time of one queue pair, however many it has; and its memory is touched no more.
# turn: 9
# takes: 170
# guests: hca
# timeout: 2000
# waits: yes
# expect-log: BUG: (send|receive) queue did not drain

. "${0%/*}/../lib/lib.sh"
. "${0%/*}/../lib/hca.sh"

# begin OPTION…: a disk with load on it, and then neither device flushes what is posted to a queue pair in error.
begin() {
	connect c1 vol1 "$@"
	start_load load c1 "$device"
	for dev in hca0 hca1; do
		knob $dev no_flush 1
	done
	knob hca0 fail_wr 1
}

# ended WHAT: the load has ended, and the session is gone on either side.
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

# As long as that takes.
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
# As many as a guest of two processors can have.
timed "four queue pairs" --queues 2 --poll-queues 2
# Each side waits 30 s for its first queue pair, and the two may do so one after the other. One side that waited
# for its five (four, and the admin queue pair) in turn would take 150 s.
within "a side's five queue pairs drain within the time of one" "$took" 120000
for side in send receive; do
	like "what the $side queues had was taken from the device" "$side queue did not drain" "$(in_log c1 "$side queue did not drain")"
done

# It is only late: nothing has to be taken from it.
reports=$(in_log c1 'queue did not drain' | wc -l)
begin --queues 2 --poll-queues 2
# Four of each side, and the admin queue pairs.
must wait_until c1 60 '[ $(rdma resource show qp | grep -c "state ERR") = 10 ]'
flush
ended "flushes that are late"
same "nothing was taken from the device" "$reports" "$(in_log c1 'queue did not drain' | wc -l)"

connect c1 vol1 --queues 2 --poll-queues 2
check "all works again" on c1 "hcablk-scatter $device random $RANDOM 8"
for dev in hca0 hca1; do
	same "$dev reached for nothing that was not its any more" 0 "$(counted $dev dma_faults)"
done
hca_end
