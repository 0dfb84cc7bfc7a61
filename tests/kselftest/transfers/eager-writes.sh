#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: writes up to the configured size go into the eager ring and others do not, their data is right, and one message answers several.
# turn: 11
# takes: 160
# timeout: 900

. "${0%/*}/../lib/lib.sh"

counters() {
	client=$(on c1 "cat $initiator/vol1/stats")
	server=$(on target "cat $target/volumes/vol1/stats")
}

# begin --OPTION…: connects, and reads on every queue: the first response grants the ring.
begin() {
	connect c1 vol1 "$@"
	must on c1 "for cpu in \$(seq 0 \$((\$(nproc) - 1))); do
			taskset -c \$cpu dd if=$device of=/dev/null bs=4k count=1 iflag=direct || exit
		done"
}

# writes "DESCRIPTION" BYTES eager|not|inline [DD-FLAG]: makes twenty writes, one at a time, and checks the counters.
writes() {
	local n=20 old_client=$client old_server=$server name wanted got=
	client=$(on c1 "dd if=/dev/zero of=$device bs=$2 count=$n oflag=direct${4:+,$4} && cat $initiator/vol1/stats") || die "$1"
	server=$(on target "cat $target/volumes/vol1/stats")
	for name in eager_writes registrations; do
		got+="$(($(count $name "$client") - $(count $name "$old_client"))) "
	done
	for name in eager_writes rdma_reads copied_bytes; do
		got+="$(($(count $name "$server") - $(count $name "$old_server"))) "
	done
	case $3 in
	eager) wanted="$n 0 $n 0 0 " ;;
	not) wanted="0 $n 0 $n 0 " ;;
	inline) wanted="0 0 0 0 0 " ;;
	esac
	same "$1" "$wanted" "$got"
}

# all "DESCRIPTION" SEED: checks data of every size and shape.
all() {
	check "$1: memory of every shape arrives" on c1 "hcablk-scatter $device random $2 3"
	check "$1: data from scattered pages arrives" on c1 "hcablk-scatter $device gaps $2 3"
	check "$1: fio verifies many requests of all sizes" fio c1 "--name=v --filename=$device --rw=randrw --bsrange=512-256k --blockalign=512 \
		--iodepth=48 --numjobs=2 --size=$(few 4)M --offset_increment=64M --verify=crc32c --verify_fatal=1"
	counters
	same "$1: no errors" "0 0 0" \
		"$(count errors "$client") $(count protocol_errors "$client") $(count protocol_errors "$server")"
}

export_volume vol1 "$drive" c1
must on c1 "modprobe hcablk"
for limit in 0 32768; do
	begin --small-write 512 --eager-write $limit
	same "$limit: the setting is shown" $limit "$(on c1 "cat $initiator/vol1/eager_write")"
	counters
	# The target's counters continue over connections.
	before=$(count eager_writes "$server")
	for bytes in 4096 32768 131072; do
		way=not
		[ $bytes -gt $limit ] || way=eager
		writes "$limit: writes of $bytes bytes: $way" $bytes $way
	done
	writes "$limit: the data of small writes goes with their requests" 512 inline
	all "$limit" $((limit + 1))
	same "$limit: client and target count the same" "$(count eager_writes "$client")" \
		$(($(count eager_writes "$server") - before))
	[ $limit = 0 ] || less "$limit: other writes were eager, too" 100 "$(count eager_writes "$client")"
	disconnect c1 vol1
done

# Stable when answered: a message after the data asks for that.
begin --small-write 0
counters
writes "writes that must be stable when answered are eager, too" 16384 eager dsync
disconnect c1 vol1

# As little memory as possible, and then few credits: some writes find no slot.
must on target 'hcablk target unlisten --all && hcablk target listen --buffer-mib 1'
connect c1 vol1 --queues 1 --eager-write 131072
all "little memory" 7
less "some writes found no ring slot" 0 "$(count eager_misses "$client")"
less "other writes found a ring slot" 0 "$(count eager_writes "$client")"
disconnect c1 vol1
must on target 'hcablk target unlisten --all && hcablk target listen --queue-credits 3'
connect c1 vol1
all "few credits" 8
disconnect c1 vol1
must on target 'hcablk target unlisten --all && hcablk target listen'

# Data that the initiator could change while the target computes from it (a parity, a checksum, a copy) is not written eagerly.
name=$(basename "$(on target "readlink -f $drive")")
eager() {
	begin --small-write 0
	counters
	writes "$1" 16384 "$2"
	disconnect c1 vol1
}
must on target "echo 1 > /sys/block/$name/queue/stable_writes"
eager "a drive that needs stable data gets no eager writes" not
must on target "hcablk target unexport vol1 && hcablk target unlisten --all && rmmod hcablk_target && modprobe hcablk_target rdma_read=0"
export_volume vol1 "$drive" c1
refuse "a drive that needs stable data needs RDMA READ" on c1 "hcablk connect $target_address vol1"
check "the target logs that such a drive needs RDMA READ" in_log target 'without RDMA READ its drive must accept data that changes'
must on target "hcablk target unexport vol1 && hcablk target unlisten --all && rmmod hcablk_target"
must on target "echo 0 > /sys/block/$name/queue/stable_writes"
export_volume vol1 "$drive" --cache-mib=8 c1
eager "a volume with a cache gets no eager writes" not
must on target "hcablk target unexport vol1"
export_volume vol1 "$drive" c1
eager "other volumes get eager writes" eager
must on target "hcablk target unexport vol1"

# A drive that completes at once, so that responses are sent together.
must on target 'modprobe null_blk nr_devices=0 && mkdir /sys/kernel/config/nullb/fast && cd /sys/kernel/config/nullb/fast &&
	echo 64 > size && echo 1 > memory_backed && echo 0 > irqmode && echo 1 > power'
export_volume fast /dev/fast c1
connect c1 fast --queues 1
check "many writes at a time to a fast drive succeed" fio c1 "--name=f --filename=$device --rw=randwrite --bs=4k --iodepth=64 \
	--iodepth_batch=32 --iodepth_batch_complete_min=32 --size=32m --number_ios=$(few 1600)"
# How many depends on how far behind the target is: on a slow kernel, few; on soft-iWARP, where each completion raises an event,
# none.
[ "$rdma" = siw ] || less "some responses share a message" "$(stat_of c1 $initiator/fast receives)" "$(stat_of c1 $initiator/fast eager_writes)"
