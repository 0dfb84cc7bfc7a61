#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: an md mirror removes a member that has lost acknowledged writes when it next writes a superblock, continues without it, and has all data after the member was removed, cleared and added again.
# turn: 23
# takes: 45
# guests: target c1
# skips: debug
# timeout: 480
# expect-log: (md|Buffer I/O).*

. "${0%/*}/../lib/lib.sh"
. "${0%/*}/../lib/lost.sh"

array=/sys/block/md0/md
# put WORD BLOCK: fills a block of the array with the word, bypassing the page cache
put() {
	must on c1 "yes $1 | dd of=/dev/md0 bs=4k count=1 seek=$2 iflag=fullblock oflag=direct conv=notrunc status=none"
}
# word_of DEVICE BLOCK: prints the word of the block
word_of() {
	on c1 "dd if=$1 bs=4k count=1 skip=$2 iflag=direct status=none | uniq"
}
in_sync() {
	wait_until c1 100 "[ \$(cat $array/degraded) = 0 ] && grep -q idle $array/sync_action"
}
# contents: prints a checksum of the whole array
contents() {
	on c1 'dd if=/dev/md0 bs=64k iflag=direct status=none | sha256sum'
}

on c1 'modprobe raid1' || skip "the kernel has no raid1"
must on target 'echo 360000 > /proc/sys/vm/dirty_expire_centisecs; echo 0 > /proc/sys/vm/dirty_writeback_centisecs'
export_volume vol1 "$drive" --mode=cached c1
connect c1 vol1 --ctrl-loss-tmo 600
must on c1 'modprobe brd rd_nr=1 rd_size=65536'
# md reads from the disk while it is in the array.
must on c1 "mdadm --create /dev/md0 --run --metadata=1.2 --level=1 --raid-devices=2 --bitmap=none --size=16M $device --write-mostly /dev/ram0"
check "the mirror of the disk and a RAM disk is in sync" in_sync
# The array's data begins here on the disk, in blocks of 4 KiB.
offset=$(($(on c1 "cat $array/dev-$disk/offset") / 8))
# md must not write a superblock now, which would flush the writes before it.
must on c1 "env echo 0 > $array/safe_mode_delay"
put old 100
same "a flush of the array succeeds" "done" "$(flush c1 /dev/md0)"
put new 100
same "both members have the new data" "new new" "$(word_of /dev/md0 100) $(word_of "$device" $((offset + 100)))"

must vm kill target
must state_is c1 vol1 queueing
must vm start target
export_volume vol1 "$drive" --mode=cached c1
must state_is c1 vol1 live
same "the disk has lost the write" "1 old" "$(lost c1 vol1) $(word_of "$device" $((offset + 100)))"
same "md does not know of the loss yet" 0 "$(on c1 "cat $array/degraded")"
same "fsync of the array succeeds although the disk's flush fails" "done" "$(flush c1 /dev/md0)"
check "md logs the failed flush of the disk" wait_log c1 30 "md: $disk flush io error"
same "md reads the old data of the disk" "old 0" "$(word_of /dev/md0 100) $(on c1 "cat $array/degraded")"
must on c1 "env echo 0.2 > $array/safe_mode_delay"
put end 200
check "md removes the disk at its next superblock write" wait_until c1 30 "grep -q '$disk.*(F)' /proc/mdstat"
same "the array continues with the other member" "new end done" "$(word_of /dev/md0 100) $(word_of /dev/md0 200) $(flush c1 /dev/md0)"
put mid 300
same "the disk still has lost writes while md has it open" 1 "$(lost c1 vol1)"
check "the disk is removed from the array" on c1 "mdadm /dev/md0 --remove $device"
same "the loss ends when md has closed the disk" 0 "$(lost c1 vol1)"
check "the disk's superblock is cleared" on c1 "mdadm --zero-superblock $device"
check "the disk is added again" on c1 "mdadm /dev/md0 --add $device"
check "md has copied all data to the disk" in_sync
same "a flush of the array succeeds afterwards" "done 0" "$(flush c1 /dev/md0) $(lost c1 vol1)"
wanted=$(contents)
must on c1 'mdadm /dev/md0 --fail /dev/ram0 --remove /dev/ram0'
same "the array's data is the same without the other member" "$wanted" "$(contents)"
same "the disk has the lost data, and the data written since" "new end mid" "$(word_of /dev/md0 100) $(word_of /dev/md0 200) $(word_of /dev/md0 300)"
must on c1 "mdadm --stop /dev/md0 && mdadm --zero-superblock $device"
disconnect c1 vol1
