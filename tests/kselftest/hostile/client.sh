#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: a client that sends malformed messages gets the protocol's answers, changes only the sectors that it may write, and hinders no other client.
# tier: heart
# turn: 0
# takes: 120
# skips: siw
# timeout: 7200

. "${0%/*}/../lib/lib.sh"

[ "$rdma" = rxe ] || skip "the hostile client's library speaks soft-RoCE only"

# Seed 1 by default, the turn's number in CI. For another one, and more messages:
# HCABLK_SEED=2 HCABLK_MESSAGES=1000000 make test T=hostile/client
messages=$(hostile_messages 100000)
seed=${HCABLK_SEED:-1}
first=${HCABLK_FIRST:-0}
# The good writes of the hostile client go to these sectors only; it also spares the volume's last ones.
zone="8192 256"

# A volume of 16 MiB in memory, so that all of it can be compared.
must on target 'modprobe null_blk nr_devices=0 && mkdir /sys/kernel/config/nullb/small &&
	cd /sys/kernel/config/nullb/small && echo 16 > size && echo 1 > memory_backed && echo 1 > discard && echo 1 > power'
volume=/dev/small
# The volume has reservations.
wwid=--wwid=8a51c0de-63aa-4b1c-9b57-2f2c0e9d6c63
must on target "$(keep /tmp/reservations) && modprobe hcablk_target && env echo /tmp/reservations > $target/reservations"

# attack MESSAGES: c1 is the hostile client; sets $output and its exit $code.
attack() {
	code=0
	output=$(ON_SECONDS=$(($1 / 10 + 200)) on c1 "hcablk-hostile client $target_address 7744 vol1 $(host_id c1) $zone \
		--seed $seed --messages $1 --first $first" 2>&1) || code=$?
	echo "$output" >&2
	echo "# $(tail -n 1 <<< "$output")"
}

# The last session of the hostile client ends only after the silence limit, 11 s, if the client vanished between its request and the
# reply, and another processor handled its rejection before the request (drivers/infiniband/core/cm.c).
hostile_is_gone() {
	wait_until target 60 "! grep -q $(host_id c1) $target/volumes/vol1/clients"
}

# all_bounds MESSAGES: checks that every operation was sent with blocks on either side of every bound, if enough messages were sent.
all_bounds() {
	[ "$first" != 0 ] || [ "$1" -lt 1000 ] || like "the hostile client tried each operation at each bound" " (7[0-9]*) of \1 pairs" "$output"
}

export_volume vol1 "$volume" $wwid c1 c2
connect c2 vol1
must on c2 "hcablk-hostile fill $device"
disconnect c2 vol1
must on target 'hcablk target unexport vol1'

few_messages=$((messages / 10 > 1000 ? messages / 10 : messages < 1000 ? messages : 1000))
export_volume vol1 "$volume" $wwid --read-only c1 c2
attack $few_messages
same "a read-only volume answers $few_messages messages of seed $seed as the protocol requires" 0 $code
all_bounds $few_messages
like "some messages were writes to the read-only volume" " [1-9][0-9]* refused as read-only" "$output"
refused=$output
connect c2 vol1
check "the read-only volume has not changed" on c2 "hcablk-hostile check $device 0 0"
disconnect c2 vol1
must hostile_is_gone
must on target 'hcablk target unexport vol1'

export_volume vol1 "$volume" $wwid c1 c2
connect c2 vol1
# An honest client reads the same volume, where no client writes. It pauses, to leave time to the hostile client.
ON_SECONDS=$((messages / 10 + 300)) spawn reader c2 "
	until [ -e /tmp/stop ]; do hcablk-hostile check $device $zone || exit 1; usleep 2000000; done"
attack "$messages"
same "the volume answers $messages messages of seed $seed as the protocol requires" 0 $code
all_bounds "$messages"
less "some messages were discards" 0 "$(stat_of target $target/volumes/vol1 discards)"
like "some queue pairs replaced others" " [1-9][0-9]* in place of another one" "$output"
like "some messages came on admin queue pairs, good and bad ones" " [1-9][0-9]* messages on admin queue pairs, [1-9][0-9]* of which ended" "$output"
# One in six of the admin queue pairs with malformed messages is about reservations; 10,000 messages have some twenty of these.
like "some messages of both runs were about reservations" " [1-9][0-9]* about reservations" "$refused $output"
like "some messages had several requests" " [1-9][0-9]* messages of several requests" "$output"
like "some small reads were answered by an immediate value" " [1-9][0-9]* by a value" "$output"
like "some writes had their data after the request" " [1-9][0-9]* writes by a message" "$output"
like "some writes used the eager ring, with an immediate value and with a request" " [1-9][0-9]* in the eager ring by a message, [1-9][0-9]* by an immediate value" "$output"
on c2 'touch /tmp/stop'
check "the honest client was served meanwhile" join reader
on c2 'rm /tmp/stop'
check "the hostile client changed only its sectors" on c2 "hcablk-hostile check $device $zone"
check "the hostile client has no session left" hostile_is_gone
connect c1 vol1
check "the hostile client's host is served again" on c1 "hcablk-scatter $device random 83 8"
disconnect c1 vol1
disconnect c2 vol1
check "no queue pair is left" wait_until target 30 "[ \$(rdma resource show qp | grep -v 'type GSI' | wc -l) = 0 ]"
