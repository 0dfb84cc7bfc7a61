#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: an RDMA device that takes no work ends the connection and no more; memory that cannot be mapped is asked for again, or ends it.
# turn: 10
# takes: 10
# skips: stock
# timeout: 900

. "${0%/*}/../lib/lib.sh"

faults=/sys/kernel/debug/hcablk_faults
share c1
on c1 "[ -d $faults/post ]" || skip "the kernel has no fault injection (CONFIG_FAULT_INJECTION_DEBUG_FS)"

# inject GUEST post|map PERCENT TIMES: so many of these fail, at random, from now on.
inject() {
	must on "$1" "cd $faults/$2 && echo $4 > times && echo $3 > probability"
}
# left GUEST post|map: ends it, and prints how many have not failed.
left() {
	on "$1" "cd $faults/$2 && echo 0 > probability && cat times"
}

# Nothing of the request is posted: blk-mq brings it again.
inject c1 map 20 10000
check "requests whose memory is not mapped at once are right" fio c1 "--name=v --filename=$device --rw=randrw --bsrange=4k-256k \
	--blockalign=4k --iodepth=16 --size=$(few 8)M --verify=crc32c --verify_fatal=1"
check "so are those of every shape" on c1 "hcablk-scatter $device random $((RANDOM + 1)) 4"
less "mapping did fail" "$(left c1 map)" 9990
same "nobody was told" "0 live" "$(stat_of c1 $initiator/vol1 errors) $(on c1 "cat $initiator/vol1/state")"

# broken "DESCRIPTION" GUEST post|map PERCENT REASON: load, under which that fails once at the guest, ends with the
# connection, for that reason at the guest; afterwards all works again.
broken() {
	local what=$1 guest=$2 fault=$3 percent=$4 reason=$5 started
	start_load load c1 "$device" --bsrange=4k-512k --blockalign=4k --offset=16M --size=64M --allow_file_create=0
	must wait_until c1 30 "awk '{ exit !(\$9 >= $(few 16)) }' /sys/block/$disk/stat"
	inject "$guest" "$fault" "$percent" 1
	ends_within load 40000 "$what"
	same "$what: it has failed" 0 "$(left "$guest" "$fault")"
	check "$what: the connection is lost" wait_until c1 30 "grep -q failed $initiator/vol1/state"
	case $guest in
	c1) like "$what: the client says why" "$reason" "$(on c1 "cat $initiator/vol1/error")" ;;
	target) check "$what: the target says why" wait_log target 30 "ended: .*$reason" ;;
	esac
	check "$what: the target has no session left" wait_until target 60 "[ -z \"\$(cat $target/volumes/vol1/clients)\" ]"
	disconnect c1 vol1
	same "$what: no queue pair is left" 0 "$(queue_pairs c1)"
	check "$what: nor at the target" wait_until target 60 "$no_queue_pairs"
	connect c1 vol1
	check "$what: all works afterwards" on c1 "hcablk-scatter $device random $((RANDOM + 1)) 2"
}
# After some that went well, so that any of the places that post may be the one.
broken "the client posts nothing" c1 post 3 "posting failed"
broken "the target posts nothing" target post 3 "cannot be posted"
disconnect c1 vol1

# With force_mr the target maps the memory that it fetches into, for each fetch.
must on target 'hcablk target unexport vol1 && hcablk target unlisten --all && modprobe -r hcablk_target && modprobe hcablk_target force_mr=1'
export_volume vol1 "$drive" c1
connect c1 vol1
broken "the target cannot map what it fetches into" target map 30 "the buffers of a write cannot be registered"
