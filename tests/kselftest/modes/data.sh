#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: a drive and a sparse file serve the same data in every mode, and each mode uses its own data path.
# tier: heart
# turn: 8
# takes: 35
# timeout: 480

. "${0%/*}/../lib/lib.sh"

# count VOLUME COUNTER
count() {
	stat_of target "$target/volumes/$1" "$2"
}

# serves "BACKING" PATH MODE: data of every shape is right, and in the end the drive or the file holds it.
serves() {
	local what="$1, $3" path=$2 mode=$3 read written cache
	export_volume m "$path" --mode="$mode" c1
	connect c1 m
	check "$what: memory of every shape is written and read right" on c1 "hcablk-scatter $device random $((RANDOM + 1)) 3"
	check "$what: fio verifies many requests at a time" fio c1 "--name=v --filename=$device --rw=randrw --bsrange=4k-256k \
		--blockalign=4k --iodepth=32 --size=$(few 4)M --offset=4M --verify=crc32c --verify_fatal=1"
	check "$what: a flush succeeds" on c1 "dd if=/dev/zero of=$device bs=4k count=1 seek=2040 conv=fsync"
	same "$what: no errors" 0 "$(count m errors)"
	read=$(count m read_bytes) written=$(count m written_bytes) cache=$(count m cache_bytes)
	case $mode in
	direct) same "$what: no data goes through the page cache" 0 "$cache" ;;
	cached) same "$what: all data goes through the page cache" $((read + written)) "$cache" ;;
	mixed) same "$what: writes go through the page cache" "$written" "$cache" ;;
	esac
	same "$what: the bytes that cross memory are counted" $((read + written + cache)) "$(count m ram_bytes)"
	same "$what: the client reads what the drive or file holds" "$(on c1 "dd if=$device bs=1M count=8 iflag=direct | sha256sum")" \
		"$(on target "dd if=$path bs=1M count=8 | sha256sum")"
	check "$what: zeroed blocks read as zeroes, discards succeed" on c1 "blkdiscard -f -z -o 1M -l 1M $device &&
		dd if=$device bs=1M skip=1 count=1 iflag=direct | cmp -n 1048576 - /dev/zero && blkdiscard -f -o 2M -l 1M $device"
	disconnect c1 m
	must on target 'hcablk target unexport m'
}

for mode in direct cached mixed; do
	serves drive "$drive" $mode
done

file=/mnt/files/image
# Some kernels have no xfs.
systems=ext4
! on target 'modprobe xfs' 2> /dev/null || systems='ext4 xfs'
for system in $(by_turns "" "$systems"); do
	must on target "modprobe $system"
	case $system in
	ext4) must on target "mkfs.ext4 -q -F $drive2 400M" ;;
	xfs) must on target "mkfs.xfs -q -f -d size=400m $drive2" ;;
	esac
	must on target "mkdir -p /mnt/files && mount -t $system $drive2 /mnt/files && truncate -s 64G $file"
	for mode in direct $([ "$system" = xfs ] || echo cached) mixed; do
		serves "file on $system" $file "$mode"
	done
	check "file on $system: only written blocks take up space" on target "[ \$(du -m $file | cut -f1) -lt 64 ]"
	must on target "umount /mnt/files"
done
