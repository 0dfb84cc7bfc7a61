#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: an RDMA device that refuses work requests ends only the connection; a request whose memory cannot be mapped is tried again by the client, and ends the connection at the target.
# turn: 10
# takes: 10
# skips: stock
# timeout: 900

. "${0%/*}/../lib/lib.sh"

faults=/sys/kernel/debug/hcablk_faults
share c1
on c1 "[ -d $faults/post ]" || skip "the kernel has no fault injection (CONFIG_FAULT_INJECTION_DEBUG_FS)"

# inject GUEST post|map PERCENT TIMES: lets PERCENT % of these calls fail at random, TIMES times at most.
inject() {
	must on "$1" "cd $faults/$2 && echo $4 > times && echo $3 > probability"
}
# left GUEST post|map: ends that, and prints how many of the TIMES are left.
left() {
	on "$1" "cd $faults/$2 && echo 0 > probability && cat times"
}

# No part of the request was posted: blk-mq issues it again.
inject c1 map 20 10000
check "fio verifies requests whose memory cannot be mapped at once" fio c1 "--name=v --filename=$device --rw=randrw --bsrange=4k-256k \
	--blockalign=4k --iodepth=16 --size=$(few 8)M --verify=crc32c --verify_fatal=1"
check "memory of every shape is written and read right while mapping fails" on c1 "hcablk-scatter $device random $((RANDOM + 1)) 4"
less "some mappings failed" "$(left c1 map)" 9990
same "the client has no errors and stays connected" "0 live" "$(stat_of c1 $initiator/vol1 errors) $(on c1 "cat $initiator/vol1/state")"

# broken "DESCRIPTION" GUEST post|map PERCENT REASON: starts load, lets one such call fail at the guest, and checks that the
# connection ends for this reason, and that the disk works afterwards.
broken() {
	local what=$1 guest=$2 fault=$3 percent=$4 reason=$5 started
	start_load load c1 "$device" --bsrange=4k-512k --blockalign=4k --offset=16M --size=64M --allow_file_create=0
	must wait_until c1 30 "awk '{ exit !(\$9 >= $(few 16)) }' /sys/block/$disk/stat"
	inject "$guest" "$fault" "$percent" 1
	ends_within load 40000 "$what"
	same "$what: the call failed once" 0 "$(left "$guest" "$fault")"
	check "$what: the connection is lost" wait_until c1 30 "grep -q failed $initiator/vol1/state"
	case $guest in
	c1) like "$what: the disk's error has the reason" "$reason" "$(on c1 "cat $initiator/vol1/error")" ;;
	target) check "$what: the target logs the reason" wait_log target 30 "ended: .*$reason" ;;
	esac
	check "$what: the target has no session left" wait_until target 60 "[ -z \"\$(cat $target/volumes/vol1/clients)\" ]"
	disconnect c1 vol1
	same "$what: the client has no queue pair left" 0 "$(queue_pairs c1)"
	check "$what: the target has no queue pair left" wait_until target 60 "$no_queue_pairs"
	connect c1 vol1
	check "$what: the disk works afterwards" on c1 "hcablk-scatter $device random $((RANDOM + 1)) 2"
}
# A few calls succeed first, so that any call that posts may be the one that fails.
broken "the client cannot post" c1 post 3 "posting failed"
broken "the target cannot post" target post 3 "cannot be posted"
disconnect c1 vol1

# With force_mr the target maps memory for each RDMA READ.
must on target 'hcablk target unexport vol1 && hcablk target unlisten --all && modprobe -r hcablk_target && modprobe hcablk_target force_mr=1'
export_volume vol1 "$drive" c1
connect c1 vol1
broken "the target cannot map memory for an RDMA READ" target map 30 "the buffers of a write cannot be registered"
