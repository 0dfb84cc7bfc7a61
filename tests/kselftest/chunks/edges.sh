#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: what finds no free chunks moves whole, which is counted, and a FUA write in chunks does not flush a drive for each of them.
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

# A queue pair has 1024 chunks. With so many transfer buffers, more large requests are admitted than there are chunks for.
must on target 'hcablk target listen --buffer-mib 256'
make_drive pool 2000000 64 memory_backed=1
export_volume u /dev/pool --no-port --chunk-kib=64 c1
connect c1 u --queues 1
# Written a little at a time, read all at once.
check "data is written" fio c1 "--name=w --filename=$device --rw=write --bs=1M --iodepth=2 --size=64M --verify=crc32c --do_verify=0"
same "all of it in chunks" "1024 0" "$(count u chunks) $(count u unchunked)"
check "many large reads at a time are right" fio c1 "--name=r --filename=$device --rw=read --bs=1M --iodepth=64 --numjobs=2 --size=64M \
	--verify=crc32c --verify_fatal=1"
less "some of them found no free chunks" 0 "$(count u unchunked)"
less "others did" 1024 "$(count u chunks)"
moved=$(count u unchunked)
check "all are in chunks again when there are few" fio c1 "--name=r --filename=$device --rw=read --bs=1M --iodepth=2 --verify=crc32c \
	--verify_fatal=1 --size=64M"
same "nothing was moved whole" "$moved" "$(count u unchunked)"
same "no errors" "0 0" "$(count u errors) $(count u protocol_errors)"
disconnect c1 u
must on target 'hcablk target unexport u && hcablk target unlisten --all'

# written NAME WHAT DD-FLAGS CHUNKS: 1 MiB to the volume, in so many chunks; $flushes is how often the drive was flushed.
written() {
	local chunks stable
	chunks=$(count "$1" chunks) stable=$(count "$1" fua_writes)
	flushes=$(on target "awk '{ print \$16 }' /sys/block/$1/stat")
	check "$2 is right" on c1 "dd if=/dev/urandom of=/tmp/data bs=1M count=1 && dd if=/tmp/data of=$device bs=1M oflag=$3 conv=notrunc &&
		dd if=$device bs=1M count=1 iflag=direct | cmp - /tmp/data"
	# The read's are 16.
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
	same "fua $fua: the drive has a cache, and FUA or not" "write back $fua" \
		"$(on target "cat /sys/block/fua$fua/queue/write_cache /sys/block/fua$fua/queue/fua" | xargs)"
	written fua$fua "fua $fua: a write" direct $chunks
	same "fua $fua: it flushes nothing" 0 "$flushes"
	written fua$fua "fua $fua: a FUA write" direct,dsync $((fua == 1 ? chunks : 0))
	# The client's kernel flushes after it, too.
	same "fua $fua: it flushes the drive at most once for itself" $((2 - fua)) "$flushes"
	disconnect c1 fua$fua
	must on target "hcablk target unexport fua$fua"
done
on c1 'rm -f /tmp/data'
