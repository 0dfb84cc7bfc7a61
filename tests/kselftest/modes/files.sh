#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: a file that cannot serve is refused; a file that fills its file system, shrinks or is removed ends in errors or keeps serving.
# turn: 2
# takes: 40
# timeout: 480

. "${0%/*}/../lib/lib.sh"

# refused "WHAT" REGEX ARGUMENTS…
refused() {
	local output
	output=$(on target "hcablk target export bad ${*:3} 2>&1") && fail "$1 is refused" && return
	like "$1 is refused" "$2" "$output"
}

must on target "modprobe ext4; mkfs.ext4 -q -F -b 4096 $drive2 32M; mkdir -p /mnt/files && mount $drive2 /mnt/files &&
	cd /mnt/files && truncate -s 1G sparse && truncate -s 4M shrinks && truncate -s 511 small && : > empty && mkdir folder &&
	truncate -s 8388613 odd"
refused "an empty file" "no size" /mnt/files/empty
refused "a file of less than a block" "no size" /mnt/files/small
refused "a folder" "[Dd]irectory" /mnt/files/folder
refused "a terminal" "[Bb]lock device" /dev/console
refused "a file that does not exist" "No such" /mnt/files/nothere
refused "an unknown mode" "invalid value" /mnt/files/sparse --mode fast
must on target "mkdir -p $target/volumes/bad"
like "the driver refuses an unknown mode, too" "Invalid" "$(on target "env echo fast > $target/volumes/bad/mode" 2>&1)"
must on target "rmdir $target/volumes/bad"

export_volume odd /mnt/files/odd c1
connect c1 odd
same "the last partial block of a file is left out" $((8 << 20)) "$(on c1 "blockdev --getsize64 $device")"
like "the mode of an exported volume cannot be changed" "busy" "$(on target "env echo cached > $target/volumes/odd/mode" 2>&1)"
refuse "the client sends no unaligned requests" on c1 "dd if=$device of=/dev/null bs=100 count=1 iflag=direct"
refuse "the file system of an exported file cannot be unmounted" on target 'umount /mnt/files'
disconnect c1 odd
must on target 'hcablk target unexport odd'

for mode in direct cached mixed; do
	must on target 'truncate -s 4M /mnt/files/shrinks'
	export_volume s /mnt/files/shrinks --mode=$mode c1
	connect c1 s
	must on c1 "dd if=/dev/urandom of=$device bs=1M count=4 oflag=direct"
	must on target 'truncate -s 2M /mnt/files/shrinks'
	check "$mode: the rest of a shrunk file is read" on c1 "dd if=$device of=/dev/null bs=64k count=32 iflag=direct"
	same "$mode: reading beyond the shrunk end fails or returns nothing" 0 "$(on c1 "dd if=$device bs=64k skip=32 count=1 iflag=direct | wc -c")"
	must on target 'rm /mnt/files/shrinks'
	check "$mode: a removed file keeps serving" on c1 "dd if=/dev/zero of=$device bs=64k count=8 oflag=direct conv=fsync"
	disconnect c1 s
	must on target 'hcablk target unexport s'

	export_volume full /mnt/files/sparse --mode=$mode c1
	connect c1 full
	like "$mode: a full file system is reported as such" "No space left" \
		"$(on c1 "dd if=/dev/zero of=$device bs=1M count=48 oflag=direct conv=fsync 2>&1")"
	check "$mode: the data of a full file is read" on c1 "dd if=$device of=/dev/null bs=1M count=8 iflag=direct"
	disconnect c1 full
	must on target 'hcablk target unexport full && rm /mnt/files/sparse && truncate -s 1G /mnt/files/sparse'
done
must on target "umount /mnt/files && mount -o data=journal $drive2 /mnt/files"
refused "direct I/O on a file system without it" "mode cached" /mnt/files/sparse
export_volume journal /mnt/files/sparse --mode=cached c1
connect c1 journal
check "mode cached serves a file without direct I/O" on c1 "hcablk-scatter $device random $((RANDOM + 1)) 1"
