#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: when the target's machine is killed at any moment, no write that a successful fsync covers is lost; with the write cache `through` no acknowledged one.
# turn: 23
# takes: 95
# guests: target c1
# skips: debug
# timeout: 5400

. "${0%/*}/../lib/lib.sh"
. "${0%/*}/../lib/lost.sh"

kills=${HCABLK_KILLS:-${HCABLK_WHOLE:+20}}
kills=${kills:-2}
seed=$((${HCABLK_SEED:-1} * 16))

# counts: how many writes were acknowledged, how many flushes succeeded, and how many blocks none of these covers
counts() {
	on c1 'hcablk-durable counts /tmp/state'
}
# more WRITES FLUSHES: what counts prints grows by these
more() {
	local writes flushes
	read -r writes flushes _ <<< "$(counts)"
	wait_until c1 100 "hcablk-durable counts /tmp/state | { read -r writes flushes _ &&
		[ \$writes -ge $((writes + $1)) ] && [ \$flushes -ge $((flushes + $2)) ]; }"
}

# rounds LABEL CACHE EXPORT-OPTION…: kills the target under the writer, $kills times, and a few times more if there was nothing to lose
# each time; sets $losses, how many kills lost acknowledged records, $told, after how many a flush failed, and $unflushed, how
# many found acknowledged records that no flush covered.
rounds() {
	local label=$1 cache=$2 round flushes uncovered found code
	shift 2
	losses=0 told=0 unflushed=0 seed=$((seed + 1))
	must on c1 'rm -f /tmp/state'
	export_volume vol1 "$volatile_drive" "$@" c1
	connect c1 vol1 --ctrl-loss-tmo 600 --reconnect-delay 1
	same "$label: so the disk's write cache is" "write $cache" "$(on c1 "cat /sys/block/$disk/queue/write_cache")"
	for ((round = 1; round <= kills + (unflushed == 0 ? 4 : 0); round++)); do
		must on c1 'rm -f /tmp/state.stop'
		ON_SECONDS=600 spawn writer c1 "hcablk-durable write $device /tmp/state $seed"
		must more 1000 2
		on c1 "usleep $((RANDOM * 30))"
		must vm kill target
		must state_is c1 vol1 queueing
		read -r _ flushes uncovered <<< "$(counts)"
		[ "$uncovered" = 0 ] || unflushed=$((unflushed + 1))
		# Every second time the writer goes on until a flush fails.
		[ $((round % 2)) = 0 ] || must on c1 'touch /tmp/state.stop'
		must vm start target
		export_volume vol1 "$volatile_drive" "$@" c1
		must state_is c1 vol1 live
		must wait_until c1 100 "! pidof hcablk-durable || hcablk-durable counts /tmp/state |
			{ read -r _ flushes _ && [ \$flushes -ge $((flushes + 5)) ]; }"
		must on c1 'touch /tmp/state.stop'
		code=0
		join writer || code=$?
		same "$label, kill $round: nothing of the loss is left when the writer has closed the disk" 0 "$(lost c1 vol1)"
		if found=$(on c1 "hcablk-durable check $device /tmp/state $seed $cache"); then
			pass "$label, kill $round: each record is there that has to be"
		else
			fail "$label, kill $round: each record is there that has to be"
		fi
		echo "# $label, kill $round: $uncovered blocks were unflushed; the writer's exit code is $code, $found" >&2
		found=${found##*lost=}
		[ "$found" = 0 ] || losses=$((losses + 1))
		case $code in
		0) same "$label, kill $round: no flush failed, and nothing is lost" 0 "$found" ;;
		3) told=$((told + 1)) ;;
		*) fail "$label, kill $round: the writer ended with $code" ;;
		esac
	done
	disconnect c1 vol1
	must on target 'hcablk target unexport vol1'
}

add_volatile_drive
rounds back back
less "back: acknowledged records were lost that no flush had covered" 0 $losses
less "back: so flushes failed" 0 $told

# Of the first kill of each of these nothing is written over before it is read.
kills=$(((kills + 1) / 2))
rounds through through --write-cache=through
less "through: blocks were acknowledged that no flush had covered" 0 $unflushed
same "through: no flush failed, and none of these blocks was lost" "0 0" "$told $losses"

rounds "cached, through" through --mode=cached --write-cache=through
less "cached, through: blocks were acknowledged that no flush had covered" 0 $unflushed
same "cached, through: no flush failed, and none of these blocks was lost" "0 0" "$told $losses"
