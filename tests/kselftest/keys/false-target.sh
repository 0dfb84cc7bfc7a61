#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: a peer that answers in a target's place without its keys gets no data of the initiator, and does not end its disk.
# turn: 16
# takes: 40
# guests: target c1
# skips: siw
# waits: yes
# timeout: 600

. "${0%/*}/../lib/lib.sh"

[ "$rdma" = rxe ] || skip "the peer's library speaks soft-RoCE only"

use_keys c1
# Random keys, in the form that the peer reads.
keys="$(key_digits c1 host | tr 0-9a-f f0-9a-e)\n$(key_digits target target | tr 0-9a-f f0-9a-e)"
export_volume vol1 "$drive" c1
connect c1 vol1 --ctrl-loss-tmo 600 --reconnect-delay 1 --queues 2
check "the disk is written" on c1 "hcablk-scatter $device random 1 8"
port=$(on target "ls -d $target/ports/*")

# stranger WRONG "DESCRIPTION": disables the target while a peer without its keys answers at its address and port; then the target
# comes back.
stranger() {
	must on target "env echo 0 > $port/enable && echo 0 > $target/volumes/vol1/enable"
	must wait_until c1 60 "grep -q queueing $initiator/vol1/state"
	spawn stranger target "printf '$keys\n' | hcablk-prove target 7744 $1 > /tmp/stranger 2>&1"
	must wait_until target 60 'grep taken /tmp/stranger'
	join stranger
	same "$2: the initiator's queue pair accepts nothing from the peer" "not taken" "$(on target 'tail -n 1 /tmp/stranger')"
	same "$2: the disk waits" queueing "$(on c1 "cat $initiator/vol1/state")"
	must on target "echo 1 > $target/volumes/vol1/enable && env echo 1 > $port/enable"
	check "$2: the disk is live again when the true target is back" wait_until c1 60 "grep -q live $initiator/vol1/state"
	check "$2: the disk has its data" on c1 "hcablk-scatter $device random 1 8"
}

stranger garbage "a false reply and a following message"
stranger early-garbage "a reply instead of a challenge, and a following message"
disconnect c1 vol1
check "no queue pair is left" wait_until target 30 "$no_queue_pairs"
