#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: when the target's machine is killed at any moment, no write that a successful fsync covers is lost; with the write cache `through`, no acknowledged write is lost.
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

# counts: prints how many writes were acknowledged, how many flushes succeeded, and how many blocks no flush covers
counts() {
	on c1 'hcablk-durable counts /tmp/state'
}
# more WRITES FLUSHES: waits until the first two numbers of counts have grown by these
more() {
	local writes flushes
	read -r writes flushes _ <<< "$(counts)"
	wait_until c1 100 "hcablk-durable counts /tmp/state | { read -r writes flushes _ &&
		[ \$writes -ge $((writes + $1)) ] && [ \$flushes -ge $((flushes + $2)) ]; }"
}

# rounds LABEL CACHE EXPORT-OPTION…: kills the target under the writer $kills times, and up to 4 times more while no kill has found an
# unflushed block. Sets three numbers of kills: $losses lost acknowledged records; after $failed_flushes a flush failed; $unflushed found
# acknowledged records that no flush covered.
rounds() {
	local label=$1 cache=$2 round flushes uncovered found code
	shift 2
	losses=0 failed_flushes=0 unflushed=0 seed=$((seed + 1))
	must on c1 'rm -f /tmp/state'
	export_volume vol1 "$volatile_drive" "$@" c1
	connect c1 vol1 --ctrl-loss-tmo 600 --reconnect-delay 1
	same "$label: the disk's write cache is write $cache" "write $cache" "$(on c1 "cat /sys/block/$disk/queue/write_cache")"
	for ((round = 1; round <= kills + (unflushed == 0 ? 4 : 0); round++)); do
		must on c1 'rm -f /tmp/state.stop'
		ON_SECONDS=600 spawn writer c1 "hcablk-durable write $device /tmp/state $seed"
		must more 1000 2
		on c1 "usleep $((RANDOM * 30))"
		must vm kill target
		must state_is c1 vol1 queueing
		read -r _ flushes uncovered <<< "$(counts)"
		[ "$uncovered" = 0 ] || unflushed=$((unflushed + 1))
		# In every second round the writer continues until a flush fails.
		[ $((round % 2)) = 0 ] || must on c1 'touch /tmp/state.stop'
		must vm start target
		export_volume vol1 "$volatile_drive" "$@" c1
		must state_is c1 vol1 live
		must wait_until c1 100 "! pidof hcablk-durable || hcablk-durable counts /tmp/state |
			{ read -r _ flushes _ && [ \$flushes -ge $((flushes + 5)) ]; }"
		must on c1 'touch /tmp/state.stop'
		code=0
		join writer || code=$?
		same "$label, kill $round: the loss ends when the writer has closed the disk" 0 "$(lost c1 vol1)"
		if found=$(on c1 "hcablk-durable check $device /tmp/state $seed $cache"); then
			pass "$label, kill $round: no record that must survive is lost"
		else
			fail "$label, kill $round: no record that must survive is lost"
		fi
		echo "# $label, kill $round: $uncovered blocks were unflushed; the writer's exit code is $code, $found" >&2
		found=${found##*lost=}
		[ "$found" = 0 ] || losses=$((losses + 1))
		case $code in
		0) same "$label, kill $round: no flush failed, and no record is lost" 0 "$found" ;;
		3) failed_flushes=$((failed_flushes + 1)) ;;
		*) fail "$label, kill $round: the writer ended with $code" ;;
		esac
	done
	disconnect c1 vol1
	must on target 'hcablk target unexport vol1'
}

add_volatile_drive
rounds back back
less "back: some acknowledged records that no flush covered were lost" 0 $losses
less "back: some flushes failed" 0 $failed_flushes

# The first kill of each reads every block before it is overwritten.
kills=$(((kills + 1) / 2))
rounds through through --write-cache=through
less "through: some acknowledged blocks were covered by no flush" 0 $unflushed
same "through: no flush failed, and no acknowledged block was lost" "0 0" "$failed_flushes $losses"

rounds "cached, through" through --mode=cached --write-cache=through
less "cached, through: some acknowledged blocks were covered by no flush" 0 $unflushed
same "cached, through: no flush failed, and no acknowledged block was lost" "0 0" "$failed_flushes $losses"
