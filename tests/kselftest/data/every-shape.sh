#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: requests of every size, from memory of every shape, arrive whole and at their place.
# turn: 17
# takes: 50
# timeout: 480

. "${0%/*}/../lib/lib.sh"

share c1
echo "# $(on c1 "hcablk-scatter $device sizes 0")"
seed=$RANDOM
echo "# seed $seed"
for case in sizes pages edges gaps bytes random; do
	check "$case: hcablk-scatter reads what it wrote" on c1 "hcablk-scatter $device $case $((seed + 1)) 24"
done
same "the drive holds what the client reads" "$(on target "dd if=$drive bs=1M count=24 iflag=direct | sha256sum")" \
	"$(on c1 "dd if=$device bs=1M count=24 iflag=direct | sha256sum")"
same "the client has no protocol errors" 0 "$(stat_of c1 $initiator/vol1 protocol_errors)"
same "the target has no protocol errors" 0 "$(stat_of target $target/volumes/vol1 protocol_errors)"
