#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: fio with the library's engine writes and verifies a volume, polled and with events, in threads and in processes, over a restart of the target; its flushes, trims and FUA writes reach the drive.
# turn: 22
# takes: 105
# waits: yes
# skips: siw debug stock
# timeout: 1500
#
# It may be skipped on all kinds of guests: the engine needs fio's source, which not every archive of Debian has.

. "${0%/*}/../lib/lib.sh"

[ "$rdma" = rxe ] || skip "the library needs memory windows, which soft-iWARP does not have"
engine=/usr/lib/x86_64-linux-gnu/fio/libhcablk-fio.so
on c1 "[ -e $engine ]" || skip "the engine was not built: fio's source is missing"
must on c1 'modprobe rdma_ucm'

# job OPTION…: prints the command for this job of fio on the volume
job() {
	echo "fio --ioengine=external:$engine --address=$target_address --volume=vol1 --host_id=$(host_id c1) --name=v --bs=4k --size=4m $*"
}
# served COUNTER: prints a counter of the target's volume
served() {
	stat_of target "$target/volumes/vol1" "$1"
}
volume() {
	export_volume vol1 "$drive" --wwid=6f0c2b62-5f5e-4c0e-9d57-0b8f3e9b0a48 c1
}
verify=(--rw=randwrite --verify=crc32c --verify_fatal=1)

volume
# Each mistake prints one message, and fio does no I/O.
# mistake "DESCRIPTION" REGEX OPTION…
mistake() {
	local what=$1 regex=$2 said
	shift 2
	said=$(on c1 "! $(job --rw=read "$@") 2>&1")
	like "fio reports $what" "$regex" "$said"
	same "$what: the message has one line" 1 "$(grep -c '^hcablk: ' <<<"$said")"
}
mistake "a volume that does not exist" "hcablk: volume nosuch of .*no volume of this name" --volume=nosuch
mistake "an invalid address" "hcablk: not an IPv4 or IPv6 address" --address=nowhere
mistake "an unknown option" "hcablk: options: size: .*no option" --options=size=1
mistake "an excessive number" "hcablk: options: queue-depth: .*1 to 1024" --options=queue-depth=5000
mistake "an option that the engine sets" "hcablk: options: queues cannot be set" --options=queues=2
mistake "missing keys" "hcablk: cannot read a key from /etc/hcablk/keys/host" --keys=1
mistake "requests of partial blocks" "hcablk: bs must be a multiple of the volume's block size" --bs=100

# The engine knows the volume's size: fio needs no size.
size=$(on target "blockdev --getsize64 $drive")
check "fio reads the volume's end" on c1 "$(job --rw=read --size=0 --offset=$((size - (1 << 20))))"
must on c1 "rm -f /tmp/o && $(job --rw=write --size=1m --offset=8m --verify_pattern=0x5a --verify=pattern --do_verify=0)"
same "the drive holds what fio wrote" 0 "$(on target "dd if=$drive bs=1M skip=8 count=1 iflag=direct status=none | tr -d Z | wc -c")"

for way in "--events=0" "--events=1"; do
	check "$way: fio verifies one block at a time" on c1 "$(job "${verify[@]}" --iodepth=1 --size=1m "$way")"
	check "$way: fio verifies many requests at a time" on c1 "$(job "${verify[@]}" --iodepth=64 --iodepth_batch=16 --iodepth_batch_complete_min=8 "$way")"
	check "$way: fio verifies requests of all lengths" on c1 "$(job "${verify[@]}" --bsrange=4k-512k --iodepth=16 --size=16m "$way")"
	check "$way: fio verifies the data of two threads that share a session" on c1 "$(job "${verify[@]}" --iodepth=16 --thread=1 --numjobs=2 --offset_increment=16m "$way")"
	check "$way: fio verifies the data of two processes" on c1 "$(job "${verify[@]}" --iodepth=16 --numjobs=2 --offset_increment=16m "$way")"
done
check "fio verifies requests without memory windows and without the eager ring" on c1 "$(job "${verify[@]}" --bs=32k --iodepth=8 --options=small-read=0,eager-write=0,queue-depth=4)"
like "threads and processes in one run are refused" "must all be threads" \
	"$(on c1 "! $(job --rw=read --thread=1 --name=w --thread=0) 2>&1")"
check "fio leaves nothing at the target" wait_until target 60 "$no_queue_pairs"

# A session has an admin queue pair and one for each queue: their number shows which jobs share a session. Then fio is
# interrupted.
# pairs COUNT "DESCRIPTION" OPTION…: checks the number of queue pairs of two jobs
pairs() {
	local count=$1 what=$2
	shift 2
	spawn pairs c1 "$(job --rw=randrw --iodepth=32 --time_based --runtime=600 --numjobs=2 "$@") > /tmp/pairs 2>&1 & echo \$! > /tmp/pid; wait \$!; true"
	check "$what" wait_until target 60 "[ \$(rdma resource show qp | grep -v 'type GSI' | wc -l) = $count ]"
	# fio ignores an interrupt that comes before all of its jobs run.
	must wait_until c1 60 '! kill -INT $(cat /tmp/pid)'
	join pairs
	check "$what: an interrupted fio leaves nothing at the target" wait_until target 60 "$no_queue_pairs"
}
pairs 3 "two threads have one session" --thread=1
pairs 4 "two processes have two sessions" --events=1

flushes=$(served flushes)
check "fio writes with fsync after every eighth write" on c1 "$(job --rw=write --fsync=8 --size=256k --iodepth=4)"
# 64 writes, without a flush after the last.
same "each fsync is a flush at the target" 7 "$(($(served flushes) - flushes))"
flushes=$(served flushes)
check "fio writes with fdatasync after every eighth write" on c1 "$(job --rw=write --fdatasync=8 --size=256k)"
same "each fdatasync is a flush at the target" 7 "$(($(served flushes) - flushes))"
trace=/sys/kernel/tracing
must on target "echo 1 > $trace/events/block/block_rq_issue/enable && echo > $trace/trace"
check "fio writes with sync=dsync" on c1 "$(job --rw=write --sync=dsync --size=64k --iodepth=4)"
same "each of these is a write with FUA at the target" 16 "$(on target "grep -c 'block_rq_issue: .* WF[A-Z]* ' $trace/trace")"
must on target "echo 0 > $trace/events/block/block_rq_issue/enable"
discards=$(served discards)
check "fio trims" on c1 "$(job --rw=trim --bs=64k --size=1m --iodepth=4)"
same "each trim is a discard at the target" 16 "$(($(served discards) - discards))"

writes=$(served writes)
ON_SECONDS=900 spawn load c1 "$(job "${verify[@]}" --size=24m --iodepth=16 --bsrange=4k-64k --rate=2m --thread=1 --numjobs=2 --offset_increment=32m)"
must wait_until target 60 "awk '\$1 == \"writes\" { n += \$2 } END { exit !(n > $writes + 40) }' $target/volumes/vol1/stats"
must vm kill target
must vm start target
volume
check "the data written over a restart of the target is read back" join load
check "fio leaves nothing at the target after the restart" wait_until target 60 "$no_queue_pairs"
refuse "the client has loaded none of our modules" on c1 "grep -q '^hcablk' /proc/modules"
