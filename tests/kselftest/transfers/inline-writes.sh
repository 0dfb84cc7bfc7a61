#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: the data of writes up to the configured size goes with the request, that of larger writes does not, and the data is right.
# tier: heart
# turn: 3
# takes: 50
# timeout: 400

. "${0%/*}/../lib/lib.sh"

counters() {
	client=$(on c1 "cat $initiator/vol1/stats")
	server=$(on target "cat $target/volumes/vol1/stats")
}

# writes "DESCRIPTION" BYTES WAY: makes thirty writes, one at a time, and checks the counters.
writes() {
	local n=30 old_client=$client old_server=$server name wanted got=
	must on c1 "dd if=/dev/zero of=$device bs=$2 count=$n oflag=direct"
	counters
	for name in inline_writes registrations rdma_bytes copied_bytes; do
		got+="$(($(count $name "$client") - $(count $name "$old_client"))) "
	done
	for name in inline_writes rdma_bytes; do
		got+="$(($(count $name "$server") - $(count $name "$old_server"))) "
	done
	case $3 in
	goes) wanted="$n 0 $((n * $2)) 0 $n $((n * $2)) " ;;
	registered) wanted="0 $n $((n * $2)) 0 0 $((n * $2)) " ;;
	esac
	same "$1" "$wanted" "$got"
}

export_volume vol1 "$drive" c1
must on c1 "modprobe hcablk"
for limit in $(by_turns "0 65536" "512 4096"); do
	options="--eager-write 0"
	[ "$limit" = 4096 ] || options+=" --small-write $limit"
	connect c1 vol1 "$options"
	same "$limit: the setting is shown" "$limit" "$(on c1 "cat $initiator/vol1/small_write")"
	counters
	# The target's counters continue over connections.
	before=$(count inline_writes "$server")
	for bytes in 512 4096 8192; do
		way=registered
		# The target accepts at most a page with a request.
		[ $bytes -gt "$limit" ] || [ $bytes -gt 4096 ] || way=goes
		writes "$limit: writes of $bytes bytes: $way" $bytes $way
	done
	check "$limit: memory of every shape arrives" on c1 "hcablk-scatter $device random $((limit + 1)) 8"
	check "$limit: data from scattered pages arrives" on c1 "hcablk-scatter $device gaps $((limit + 2)) 8"
	check "$limit: fio verifies many requests of all sizes" fio c1 "--name=v --filename=$device --rw=randrw --bsrange=512-16k --blockalign=512 \
		--iodepth=64 --numjobs=2 --size=$(few 4)M --offset_increment=64M --verify=crc32c --verify_fatal=1"
	counters
	same "$limit: client and target count the same" "$(count inline_writes "$client")" \
		$(($(count inline_writes "$server") - before))
	same "$limit: no errors" "0 0" "$(count errors "$client") $(count protocol_errors "$client")"
	disconnect c1 vol1
done
same "the drive holds what the client wrote" "$(on target "dd if=$drive bs=1M count=8 iflag=direct | sha256sum")" \
	"$(connect c1 vol1 >&2; on c1 "dd if=/dev/hcablk0 bs=1M count=8 iflag=direct | sha256sum")"
