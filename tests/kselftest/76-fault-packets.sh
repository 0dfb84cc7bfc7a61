#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: packets that are lost, late, sent twice or out of order, on either side, change no data: what is not sent again is an error.
# group: fault
# timeout: 300

. "${0%/*}/lib.sh"

share c1 c2
lost=0

# Packets that netem took away, so far.
dropped() {
	on "$1" "tc -s qdisc show dev $2 | sed -n 's/.*dropped \([0-9]*\).*/\1/p' | head -n 1"
}

# verified FAULT-SEED: load on c1 that finds what it wrote.
verified() {
	fio c1 "--name=v --filename=$device --rw=randrw --bsrange=4k-128k --iodepth=16 --size=$(few 2)M --randseed=$1 \
		--verify=crc32c --verify_fatal=1 --allow_file_create=0" && on c1 "hcablk-scatter $device gaps $1 2"
}

# under "DESCRIPTION" SEED PLACE…: load while the network emulator at these places ("GUEST CARD") is on, which is then
# turned off.
under() {
	local what=$1 seed=$2 place
	shift 2
	survives c1 vol1 "$what" verified "$seed"
	for place; do
		# shellcheck disable=SC2086 # two words
		{
			lost=$(dropped $place)
			netem $place
		}
	done
	[ $survived = 1 ] || {
		must wait_until c1 20 "ping -c 1 -W 1 $target_address"
		connect c1 vol1
	}
}

# provokes "DESCRIPTION" SEED "GUEST CARD" "EMULATION" "EVIDENCE" COUNTER…: the same until the counter, a command, has
# moved. Soft-RoCE gives a connection up over almost anything, and that may be the first thing it does.
provokes() {
	local what=$1 seed=$2 place=$3 emulation=$4 evidence=$5 before after try
	shift 5
	before=$("$@")
	for try in 1 2 3 4 5 6; do
		# shellcheck disable=SC2086 # words
		netem $place $emulation
		under "$what" $((seed * 10 + try)) "$place"
		after=$("$@")
		[ "$after" = "$before" ] || break
	done
	less "$evidence" "$before" "$after"
}

lost() {
	echo "$lost"
}

provokes "the client loses packets" 761 "c1 eth0" "loss 2%" "the client has lost some" lost
if [ "$rdma" = rxe ]; then
	provokes "the client says it twice" 762 "c1 eth0" "duplicate 20%" "the target was asked twice" \
		rxe_count target duplicate_request
	provokes "the client is out of order" 763 "c1 eth0" "delay 2ms reorder 75% 50%" "the target was asked out of order" \
		rxe_count target out_of_seq_request
else
	# TCP sees to it, and tells nobody.
	netem c1 eth0 duplicate 20%
	under "the client says it twice" 762 "c1 eth0"
	netem c1 eth0 delay 2ms reorder 75% 50%
	under "the client is out of order" 763 "c1 eth0"
fi
lost=0
provokes "the target loses packets" 764 "target eth0" "loss 2%" "the target has lost some" lost
netem target eth0 delay 4ms 3ms
under "the target is late, by turns" 765 "target eth0"

# All of it on both sides, and another client on a clean wire.
spawn neighbour c2 "fio --name=v --filename=$device --direct=1 --ioengine=libaio --rw=randrw --bs=16k --iodepth=4 \
	--offset=512M --size=$(few 4)M --verify=crc32c --verify_fatal=1 --allow_file_create=0"
for place in "c1 eth0" "target eth0"; do
	# shellcheck disable=SC2086 # two words
	netem $place delay 2ms 1ms loss 0.5% duplicate 2%
done
under "all at once" 766 "c1 eth0" "target eth0"
check "the neighbour's data is right" join neighbour
same "the neighbour is connected still" live "$(on c2 "cat $initiator/vol1/state")"
same "the neighbour saw no error" 0 "$(stat_of c2 $initiator/vol1 errors)"
check "without faults all is well" verified 767
