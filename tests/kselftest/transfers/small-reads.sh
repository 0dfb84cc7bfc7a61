#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: one message answers a read up to the configured size, larger reads are registered, and the data is right either way.
# turn: 20
# takes: 100
# timeout: 700

. "${0%/*}/../lib/lib.sh"

# On iWARP no read uses a bounce slot.
asks=1
[ "$rdma" != siw ] || asks=0

# counters_of_both VOLUME: sets $client and $server.
counters_of_both() {
	client=$(on c1 "cat $initiator/$1/stats")
	server=$(on target "cat $target/volumes/$1/stats")
}

# uses_data_path "DESCRIPTION" DD-ARGUMENTS BYTES PATH: makes requests of this length, one at a time, and checks that they use
# this data path only. Nothing else may have moved since $client and $server were set.
uses_data_path() {
	local what=$1 how=$2 bytes=$3 data_path=$4 n=30 old_client=$client old_server=$server name wanted got=
	client=$(on c1 "dd $how bs=$bytes count=$n && cat $initiator/vol1/stats") || die "$what"
	server=$(on target "cat $target/volumes/vol1/stats")
	for name in immediates copied_bytes registrations rdma_bytes remote_invalidations; do
		got+="$(($(count $name "$client") - $(count $name "$old_client"))) "
	done
	for name in immediates remote_invalidations; do
		got+="$(($(count $name "$server") - $(count $name "$old_server"))) "
	done
	if [ "$data_path" = bounce ] && [ $asks = 1 ]; then
		wanted="$n $((n * bytes)) 0 0 0 $n 0 "
	else
		wanted="0 0 $n $((n * bytes)) $n 0 $n "
	fi
	same "$what" "$wanted" "$got"
}

export_volume vol1 "$drive" c1
must on c1 "modprobe hcablk"

# There are as many slots of 64 KiB as tags: a region of soft-RoCE has 512 pages.
for limit in $(by_turns "0 65536" "512 8192"); do
	options="--queue-depth 32 --small-write 0 --eager-write 0"
	# The default needs no option.
	[ "$limit" = 8192 ] || options+=" --small-read $limit"
	connect c1 vol1 "$options"
	same "$limit: the setting is shown" "$limit" "$(on c1 "cat $initiator/vol1/small_read")"
	counters_of_both vol1
	for bytes in 512 4096 8192 65536 131072; do
		data_path=registered
		[ $bytes -gt "$limit" ] || data_path=bounce
		uses_data_path "$limit: reads of $bytes bytes: $data_path" "if=$device of=/dev/null iflag=direct" $bytes $data_path
	done
	for bytes in 512 4096; do
		uses_data_path "$limit: writes of $bytes bytes: registered" "if=/dev/zero of=$device oflag=direct" $bytes registered
	done
	check "$limit: data in memory of every shape is right" on c1 "hcablk-scatter $device random $((limit + 1)) 8"
	check "$limit: data of many requests of all sizes is right" fio c1 "--name=v --filename=$device --rw=randrw \
		--bsrange=512-128k --blockalign=512 --iodepth=32 --size=$(few 8)M --verify=crc32c --verify_fatal=1"
	counters_of_both vol1
	same "$limit: data that was not copied moved by RDMA" \
		$(($(count read_bytes "$client") + $(count written_bytes "$client"))) \
		$(($(count rdma_bytes "$client") + $(count copied_bytes "$client")))
	same "$limit: each registration was for a request without an immediate value" "$(count registrations "$client")" \
		$(($(count reads "$client") + $(count writes "$client") - $(count immediates "$client")))
	same "$limit: no errors" "0 0" "$(count errors "$client") $(count protocol_errors "$client")"
	disconnect c1 vol1
done

# More tags than slots, so that some requests have no slot: with a slow drive all tags are in use at once.
must on target 'modprobe null_blk nr_devices=0 && mkdir /sys/kernel/config/nullb/slow && cd /sys/kernel/config/nullb/slow &&
	echo 64 > size && echo 1 > memory_backed && echo 128 > hw_queue_depth && echo 2 > irqmode &&
	echo 500000000 > completion_nsec && echo 1 > power'
export_volume slow /dev/slow c1
connect c1 slow --small-read 65536 --small-write 0 --queue-depth 128 --queues 1
# Merged reads would be too long for a slot.
must on c1 "echo 2 > /sys/block/$disk/queue/nomerges"
check "data is right with more requests than slots" fio c1 "--name=v --filename=$device --rw=write --bs=64k --iodepth=128 --size=16M \
	--verify=crc32c --verify_fatal=1"
counters_of_both slow
if [ $asks = 1 ]; then
	less "some reads had a slot" 0 "$(count immediates "$client")"
	less "some reads had no slot" "$(count immediates "$client")" "$(count reads "$client")"
fi
same "data of reads without a slot moved by RDMA" $(($(count read_bytes "$client") + $(count written_bytes "$client"))) \
	$(($(count rdma_bytes "$client") + $(count copied_bytes "$client")))
disconnect c1 slow

# A drive with a bad block.
must on target 'mkdir /sys/kernel/config/nullb/bad &&
	cd /sys/kernel/config/nullb/bad && echo 64 > size && echo 1 > memory_backed &&
	echo +2048-2055 > badblocks && echo 1 > power'
export_volume bad /dev/bad c1
connect c1 bad
counters_of_both bad
written=$(count immediates "$client")
copied=$(count copied_bytes "$client")
refuse "reading a bad block fails" on c1 "dd if=$device of=/dev/null bs=4k skip=256 count=1 iflag=direct"
counters_of_both bad
same "the error came as a message, and no data was copied" "1 $written $copied" \
	"$(count errors "$client") $(count immediates "$client") $(count copied_bytes "$client")"
same "the target counts the same" "1 $written" "$(count errors "$server") $(count immediates "$server")"
check "the blocks next to the bad one are read" on c1 "dd if=$device of=/dev/null bs=4k skip=255 count=1 iflag=direct &&
	dd if=$device of=/dev/null bs=4k skip=257 count=1 iflag=direct"
counters_of_both bad
same "one message answered each of them" $((written + 2 * asks)) "$(count immediates "$client")"
same "the connection lives" live "$(on c1 "cat $initiator/bad/state")"
same "a failed request is no protocol error" 0 "$(count protocol_errors "$client")"
