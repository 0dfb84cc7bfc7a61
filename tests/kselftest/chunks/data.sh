#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: large requests move in chunks along the stripes of the drive, their data is right, and a request fails or succeeds as a whole.
# tier: heart
# turn: 6
# takes: 60
# skips: siw
# timeout: 480

. "${0%/*}/../lib/lib.sh"
. "${0%/*}/../lib/chunks.sh"
. "${0%/*}/../lib/p2p.sh"

[ "$rdma" != siw ] || skip "on iWARP writes move whole, and no peer memory is mapped"

count() {
	stat_of target "$target/volumes/$1" "$2"
}

# moves VOLUME "DESCRIPTION" CHUNKS COMMAND…: c1's command moves its data in CHUNKS chunks.
moves() {
	local volume=$1 what=$2 chunks=$3 before
	shift 3
	before=$(count "$volume" chunks)
	check "$what" on c1 "$*"
	same "$what: $chunks chunks" "$chunks" $(($(count "$volume" chunks) - before))
}

# verify_load VOLUME "DESCRIPTION": checks with fio that data of every size is right.
verify_load() {
	check "$2: fio verifies data with many requests at a time" fio c1 "--name=v --filename=$device --rw=randrw --bsrange=4k-1m --blockalign=4k \
		--iodepth=16 --size=$(few 12)M --offset=4M --verify=crc32c --verify_fatal=1"
	same "$2: the volume has no errors and moved nothing whole" "0 0" "$(count "$1" errors) $(count "$1" unchunked)"
	less "$2: the data moved in chunks" 16 "$(count "$1" chunks)"
}

# One of four drives is slow: its chunks come last. The device mapper and md report their stripes differently; the target
# follows both, although the volume asks for longer chunks.
make_drive fast1 0 64 memory_backed=1
make_drive fast2 0 64 memory_backed=1
make_drive fast3 0 64 memory_backed=1
make_drive slow 20000000 64 memory_backed=1
# Writes move whole if each RDMA READ needs a memory region (force_mr).
written=16 fetches=16
! on target 'grep -q hcablk_target.force_mr=1 /proc/cmdline' || written=0 fetches=1
for by in dm md; do
	case $by in
	dm) stripe stripes slow fast1 fast2 fast3 ;;
	md) raid md0 64 slow fast1 fast2 fast3 ;;
	esac
	export_volume s "$striped" --chunk-kib=512 c1
	connect c1 s
	moves s "$by: a request shorter than two stripes moves whole" 0 "dd if=/dev/zero of=$device bs=64k count=1 oflag=direct conv=notrunc"
	fetched=$(count s rdma_reads)
	moves s "$by: a write of 1 MiB moves one chunk for each stripe" "$written" \
		"dd if=/dev/urandom of=/tmp/data bs=1M count=1 && dd if=/tmp/data of=$device bs=1M seek=1 oflag=direct conv=notrunc"
	same "$by: each chunk takes one RDMA READ" "$fetches" $(($(count s rdma_reads) - fetched))
	early=$(count s early_chunks)
	moves s "$by: a read of 1 MiB moves one chunk for each stripe" 16 "dd if=$device of=/tmp/back bs=1M skip=1 count=1 iflag=direct && cmp /tmp/data /tmp/back"
	less "$by: chunks of the fast drives do not wait for those of the slow one" 11 $(($(count s early_chunks) - early))
	moves s "$by: a read that begins within a stripe ends with a part of one" 17 \
		"dd if=$device of=/dev/null bs=1M iflag=direct,skip_bytes skip=20k count=1"
	verify_load s "$by"
	disconnect c1 s
	must on target 'hcablk target unexport s'
	case $by in
	dm) must on target 'dmsetup remove stripes' ;;
	md) must on target 'echo clear > /sys/block/md0/md/array_state' ;;
	esac
done

# An error in the middle of the volume.
must on target 'modprobe null_blk nr_devices=0; mkdir /sys/kernel/config/nullb/bad && cd /sys/kernel/config/nullb/bad &&
	echo 64 > size && echo 1 > memory_backed && echo +3072-3079 > badblocks && echo 1 > power'
export_volume b /dev/bad --chunk-kib=64 c1
connect c1 b
same "a request fails as a whole when one of its chunks fails" "fails goes fails goes" "$(on c1 "for i in 1 2; do
	for skip in 1 2; do
		if [ \$i = 1 ]; then dd if=$device of=/dev/null bs=1M skip=\$skip count=1 iflag=direct
		else dd if=/dev/zero of=$device bs=1M seek=\$skip count=1 oflag=direct conv=notrunc
		fi 2> /dev/null && echo goes || echo fails
	done
done | xargs")"
same "client and target count two errors each" "2 2" "$(stat_of c1 $initiator/b errors) $(count b errors)"
same "the connection stays live" live "$(on c1 "cat $initiator/b/state")"
check "other requests are right" on c1 "dd if=/dev/urandom of=/tmp/data bs=1M count=1 && dd if=/tmp/data of=$device bs=1M oflag=direct conv=notrunc &&
	dd if=$device of=/tmp/back bs=1M count=1 iflag=direct && cmp /tmp/data /tmp/back"
disconnect c1 b
must on target 'hcablk target unexport b'

# A session ends while a slow drive has chunks.
make_drive late 100000000 64
export_volume l /dev/late --chunk-kib=64 c1
for rw in randread randwrite; do
	connect c1 l
	ON_SECONDS=330 spawn load c1 "fio --name=e --filename=$device --direct=1 --ioengine=libaio --rw=$rw --bs=512k --iodepth=4 --time_based --runtime=300"
	must wait_until target 30 "[ \$(awk '{ print \$9 }' /sys/block/late/stat) != 0 ]"
	must on target "hcablk target forbid l $(host_id c1) && hcablk target allow l $(host_id c1)"
	refuse "$rw: the requests fail when their session ends under their chunks" join load
	same "$rw: the drive has no request left" 0 "$(on target "awk '{ print \$9 }' /sys/block/late/stat")"
	must wait_until c1 60 "grep -q failed $initiator/l/state"
	disconnect c1 l
done
must on target 'hcablk target unexport l'

# Volumes that must not move data in chunks.
export_volume w "$drive" --chunk-kib=0 c1
connect c1 w
moves w "with chunk_kib 0 requests move whole" 0 "dd if=$device of=/dev/null bs=1M count=4 iflag=direct"
like "chunk_kib cannot be changed while the volume is enabled" "busy" "$(on target "env echo 64 > $target/volumes/w/chunk_kib" 2>&1)"
disconnect c1 w
must on target 'hcablk target unexport w'
like "a chunk_kib that is no power of two is refused" "Invalid argument" "$(on target "mkdir $target/volumes/n && env echo 96 > $target/volumes/n/chunk_kib" 2>&1)"
like "a chunk_kib above the maximum is refused" "range|Result" "$(on target "env echo 1024 > $target/volumes/n/chunk_kib" 2>&1)"
must on target "rmdir $target/volumes/n"
export_volume c "$drive" --mode=cached c1
export_volume m "$drive" --mode=mixed c1
connect c1 c
moves c "requests through the page cache move whole" 0 "dd if=$device of=/dev/null bs=1M count=2 iflag=direct"
disconnect c1 c
must on target 'hcablk target unexport c'
connect c1 m
moves m "writes in mode mixed move whole" 0 "dd if=/dev/zero of=$device bs=1M count=2 oflag=direct conv=notrunc"
must on target "echo 1 > /proc/sys/vm/drop_caches; sync; echo 1 > /proc/sys/vm/drop_caches"
moves m "reads of uncached data in mode mixed move in chunks" 16 "dd if=$device of=/dev/null bs=1M count=2 skip=8 iflag=direct"
disconnect c1 m
must on target 'hcablk target unexport m && hcablk target unlisten --all && modprobe -r hcablk_target'

# Through a PCI device's memory.
lend "$card"
for how in bounce direct; do
	must on target "modprobe hcablk_target p2p_virtual=$(virtual $how)"
	export_volume p "$drive" --mode=p2p --provider="$card" --chunk-kib=64 c1
	connect c1 p
	check "p2p, $how: memory of every shape is read and written right" on c1 "hcablk-scatter $device random $((RANDOM + 1)) 1"
	verify_load p "p2p, $how"
	same "p2p, $how: no request fell back to RAM" 0 "$(count p p2p_fallbacks)"
	disconnect c1 p
	must on target 'hcablk target unexport p && hcablk target unlisten --all && modprobe -r hcablk_target'
done
on c1 'rm -f /tmp/data /tmp/back'
