#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: a program that writes to a disk's configuration while the disk is being connected can be interrupted, and changes nothing.
# turn: 19
# takes: 30
# waits: yes

. "${0%/*}/../lib/lib.sh"

export_volume vol1 "$drive" c1
must on c1 'modprobe hcablk'

# The target is silent: the first connection takes two minutes.
for card in eth0 eth1; do
	netem target $card loss 100%
done
ON_SECONDS=300 spawn connecting c1 "hcablk connect $target_address vol1 --connect-timeout 120"
must wait_until c1 60 "[ \$(cat $initiator/vol1/state) = connecting ]"
must on c1 "mkdir $initiator/vol1/paths/1 && echo 10.77.2.1 > $initiator/vol1/paths/1/address"
for write in '1 > enable' '0 > enable' 'round-robin > policy' '30 > ctrl_loss_tmo' '1 > paths/1/enable'; do
	started=$(now_ms)
	code=0
	on c1 "cd $initiator/vol1 && timeout -s INT 2 sh -c 'echo $write'" >&2 || code=$?
	same "the write of $write is interrupted" 124 "$code"
	within "the write of $write ends at the signal" $(($(now_ms) - started)) $((10000 * slow))
done
same "the disk is still being connected" connecting "$(on c1 "cat $initiator/vol1/state")"
same "the policy has not changed" queue-depth "$(on c1 "cat $initiator/vol1/policy")"
same "the path is not enabled" 0 "$(on c1 "cat $initiator/vol1/paths/1/enable")"
check "the connection is ended by force" on c1 "echo 1 > $initiator/vol1/force_disconnect"
refuse "the connect command fails" join connecting
for card in eth0 eth1; do
	netem target $card
done
must on c1 'hcablk disconnect --if-exists vol1'
connect c1 vol1
check "the disk connects when the target responds again" on c1 "dd if=$device of=/dev/null bs=4k count=1 iflag=direct"
disconnect c1 vol1
