#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: requests issued together share messages, up to the configured number, and each is done, answered and failed separately.
# turn: 12
# takes: 150
# timeout: 900

. "${0%/*}/../lib/lib.sh"

volume_stats=$target/volumes/fast
# counts: prints counters of the client's device, and of the target's messages
counts() {
	stats_of c1 $initiator/fast reads writes sends joined doorbells
	stat_of target $volume_stats receives
}
# moves "DESCRIPTION" FIO-ARGUMENTS: issues requests of 4 KiB, 16 at a time; sets $requests, $sends, $joined, $receives, $bells
moves() {
	local before after
	mapfile -t before < <(counts)
	check "$1" on c1 "fio --name=t --filename=$device --direct=1 --bs=4k --iodepth=16 --iodepth_batch=16 \
		--iodepth_batch_complete_min=16 --number_ios=$(few 320) --size=32m --ioengine=libaio $2"
	mapfile -t after < <(counts)
	requests=$((after[0] + after[1] - before[0] - before[1]))
	sends=$((after[2] - before[2]))
	joined=$((after[3] - before[3]))
	bells=$((after[4] - before[4]))
	receives=$((after[5] - before[5]))
	echo "# $requests requests: $sends messages, $joined went with another, $bells doorbells; the target received $receives" >&2
}

# A drive with a failing part.
must on target 'modprobe dm_mod && modprobe null_blk nr_devices=0 && mkdir /sys/kernel/config/nullb/fast && cd /sys/kernel/config/nullb/fast &&
	echo 64 > size && echo 1 > memory_backed && echo 0 > irqmode && echo 1 > discard && echo 1 > power &&
	printf "%s\n" "0 98304 linear /dev/fast 0" "98304 8192 error" "106496 24576 linear /dev/fast 106496" | dmsetup create part && dmsetup mknodes'
export_volume fast /dev/mapper/part c1

# tries LIMIT bounce|registered: tests messages of up to LIMIT requests, whose reads use this data path
tries() {
	local limit=$1 way=$2 options="--queues 1 --eager-write 0 --small-write 0" rw what
	case $way in
	bounce) options+=" --small-read 8192" ;;
	registered) options+=" --small-read 0" ;;
	esac
	# The default needs no option.
	[ "$limit" = 8 ] || options+=" --message-requests $limit"
	connect c1 fast "$options"
	same "$limit, $way: the setting is shown" "$limit" "$(on c1 "cat $initiator/fast/message_requests")"
	for rw in randread randwrite; do
		what="$limit, $way: $rw"
		moves "$what" "--rw=$rw"
		same "$what: each request is in a message" "$requests" $((sends + joined))
		# The target also receives requests for the size.
		less "$what: the target receives all messages" $((sends - 1)) "$receives"
		less "$what: the target receives no other messages" "$receives" $((sends + 20))
		# The block layer may issue the first of 16 alone.
		case $limit in
		1) same "$what: no requests share a message" 0 "$joined" ;;
		2) less "$what: two requests share a message" $((requests * 3 / 8)) "$joined" ;;
		8) less "$what: more than two requests share a message" $((requests * 5 / 8)) "$joined" ;;
		esac
		less "$what: requests share a doorbell" $((bells * 4)) "$requests"
	done
	check "$limit, $way: memory of every shape is written and read right" on c1 "hcablk-scatter $device random $limit 4"
	check "$limit, $way: fio verifies requests of all sizes" fio c1 "--name=v --filename=$device --rw=randrw --bsrange=512-24k --blockalign=512 \
		--iodepth=48 --iodepth_batch=24 --numjobs=2 --size=$(few 2)M --offset_increment=16M --verify=crc32c --verify_fatal=1"
	disconnect c1 fast
}

for case in $(by_turns "1:bounce 8:bounce 8:registered" "1:registered 2:bounce 2:registered"); do
	tries "${case%:*}" "${case#*:}"
done

# Together with requests that move no data.
connect c1 fast --queues 1
check "flushes and discards among writes succeed" on c1 "fio --name=f --filename=$device --direct=1 --bs=4k --iodepth=32 --iodepth_batch=16 \
	--ioengine=libaio --number_ios=$(few 200) --size=16m --rw=randtrimwrite --fsync=8"
less "some requests were discards" 0 "$(stat_of c1 $initiator/fast discards)"
same "no request failed" 0 "$(stat_of c1 $initiator/fast errors)"

# A failing request fails alone.
errors=$(stat_of target $volume_stats errors)
on c1 "fio --name=e --filename=$device --direct=1 --bs=4k --iodepth=16 --iodepth_batch=16 --iodepth_batch_complete_min=16 \
	--number_ios=$(few 320) --offset=32m --size=32m --ioengine=libaio --rw=randread --continue_on_error=io --output-format=json > /tmp/report; true"
failed=$(on c1 "sed -n '/^{/,\$p' /tmp/report | grep -m 1 '\"total_err\"' | tr -cd 0-9; rm /tmp/report")
less "some requests failed" 0 "$failed"
less "other requests did not fail" "$failed" "$(($(few 320) / 2))"
same "the client counts the same errors" "$failed" "$(stat_of c1 $initiator/fast errors)"
same "the target counts the same errors" "$failed" $(($(stat_of target $volume_stats errors) - errors))
disconnect c1 fast

# Fewer credits than requests in a plug, so that messages are shorter than allowed, and the target's memory for requests is short.
must on target 'hcablk target unlisten --all && hcablk target listen --queue-credits 5'
connect c1 fast --queue-depth 64
check "data is right with five credits" fio c1 "--name=v --filename=$device --rw=randrw --bsrange=512-24k --blockalign=512 \
	--iodepth=48 --iodepth_batch=24 --numjobs=2 --size=$(few 2)M --offset_increment=16M --verify=crc32c --verify_fatal=1"
less "requests waited for credits" 0 "$(stat_of c1 $initiator/fast credit_waits)"
less "some requests share a message with five credits" 0 "$(stat_of c1 $initiator/fast joined)"
same "no request failed with five credits" "0 0" "$(stat_of c1 $initiator/fast errors) $(stat_of target $volume_stats protocol_errors)"
disconnect c1 fast
