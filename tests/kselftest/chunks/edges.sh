#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: a request that finds no free chunks moves whole and is counted, and a FUA write in chunks does not flush the drive for each chunk.
# turn: 20
# takes: 60
# skips: siw
# timeout: 480

. "${0%/*}/../lib/lib.sh"
. "${0%/*}/../lib/chunks.sh"

[ "$rdma" != siw ] || skip "on iWARP writes move whole"

count() {
	stat_of target "$target/volumes/$1" "$2"
}

# A queue pair has 1024 chunks. With 256 MiB of transfer buffers, more large requests are admitted than chunks exist.
must on target 'hcablk target listen --buffer-mib 256'
make_drive pool 2000000 64 memory_backed=1
export_volume u /dev/pool --no-port --chunk-kib=64 c1
connect c1 u --queues 1
# The data is written a little at a time, and read all at once.
check "fio writes the data" fio c1 "--name=w --filename=$device --rw=write --bs=1M --iodepth=2 --size=64M --verify=crc32c --do_verify=0"
same "all data was written in chunks" "1024 0" "$(count u chunks) $(count u unchunked)"
check "fio verifies many large reads at a time" fio c1 "--name=r --filename=$device --rw=read --bs=1M --iodepth=64 --numjobs=2 --size=64M \
	--verify=crc32c --verify_fatal=1"
less "some reads found no free chunks" 0 "$(count u unchunked)"
less "other reads found free chunks" 1024 "$(count u chunks)"
moved=$(count u unchunked)
check "fio verifies a few large reads at a time" fio c1 "--name=r --filename=$device --rw=read --bs=1M --iodepth=2 --verify=crc32c \
	--verify_fatal=1 --size=64M"
same "none of the few reads moved whole" "$moved" "$(count u unchunked)"
same "the volume has no errors" "0 0" "$(count u errors) $(count u protocol_errors)"
disconnect c1 u
must on target 'hcablk target unexport u && hcablk target unlisten --all'

# written NAME WHAT DD-FLAGS CHUNKS: writes 1 MiB to the volume in CHUNKS chunks; $flushes is the drive's number of flushes.
written() {
	local chunks stable
	chunks=$(count "$1" chunks) stable=$(count "$1" fua_writes)
	flushes=$(on target "awk '{ print \$16 }' /sys/block/$1/stat")
	check "$2 is right" on c1 "dd if=/dev/urandom of=/tmp/data bs=1M count=1 && dd if=/tmp/data of=$device bs=1M oflag=$3 conv=notrunc &&
		dd if=$device bs=1M count=1 iflag=direct | cmp - /tmp/data"
	# The read takes 16 chunks.
	same "$2 moves in $4 chunks" "$4" $(($(count "$1" chunks) - chunks - 16))
	case $3 in
	*dsync*) same "$2 is FUA" 1 $(($(count "$1" fua_writes) - stable)) ;;
	esac
	flushes=$(($(on target "awk '{ print \$16 }' /sys/block/$1/stat") - flushes))
}
chunks=16
! on target 'grep -q hcablk_target.force_mr=1 /proc/cmdline' || chunks=0
for fua in 0 1; do
	make_drive fua$fua 0 1024 memory_backed=1 cache_size=16 fua=$fua
	export_volume fua$fua /dev/fua$fua --chunk-kib=64 c1
	connect c1 fua$fua
	same "fua $fua: the drive has a write cache, and FUA as configured" "write back $fua" \
		"$(on target "cat /sys/block/fua$fua/queue/write_cache /sys/block/fua$fua/queue/fua" | xargs)"
	written fua$fua "fua $fua: a write" direct $chunks
	same "fua $fua: a write without FUA flushes nothing" 0 "$flushes"
	written fua$fua "fua $fua: a FUA write" direct,dsync $((fua == 1 ? chunks : 0))
	# The client's kernel also flushes after the write.
	same "fua $fua: a FUA write flushes the drive at most once for itself" $((2 - fua)) "$flushes"
	disconnect c1 fua$fua
	must on target "hcablk target unexport fua$fua"
done
on c1 'rm -f /tmp/data'
