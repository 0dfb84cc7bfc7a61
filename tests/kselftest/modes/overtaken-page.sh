#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: a write of part of a page is not lost when a program on the target writes the page back with older data for that part, and the page is reclaimed before the write is answered.
# turn: 6
# takes: 10
# guests: target c1
# skips: debug

. "${0%/*}/../lib/lib.sh"
. "${0%/*}/../lib/lost.sh"

on target 'modprobe -q -n nbd' || skip "this kernel has no nbd"
must on target 'modprobe nbd nbds_max=1'
# sector N: prints what the client reads of the disk
sector() {
	on c1 "dd if=$device bs=512 skip=$1 count=1 iflag=direct status=none | tr -d '\\0' | uniq"
}
put() {
	on c1 "yes $2 | dd of=$device bs=512 seek=$1 count=1 iflag=fullblock oflag=direct conv=notrunc status=none"
}
ON_SECONDS=600 spawn drive target "exec hcablk-reorder /dev/nbd0 16 hold 1 > /tmp/held"
must wait_until target 30 '[ "$(cat /sys/block/nbd0/size)" = 32768 ]'
# Its server holds the drive itself open.
must on target "modprobe dm_mod && printf '0 32768 linear /dev/nbd0 0\n' | dmsetup create above && dmsetup mknodes"
export_volume vol1 /dev/mapper/above c1
connect c1 vol1
same "sectors are smaller than pages" 512 "$(on c1 "cat /sys/block/$disk/queue/logical_block_size")"
must put 0 old
ON_SECONDS=300 spawn writer c1 "yes new | dd of=$device bs=512 seek=1 count=1 iflag=fullblock oflag=direct conv=notrunc status=none"
must wait_until target 60 'grep -q held /tmp/held'
# A read brings the page into the target's page cache as it was before the write. Then the write reaches the drive.
hold other target w /dev/mapper/above
must on target 'dd if=/dev/mapper/above of=/dev/null bs=4k count=1 status=none'
must on target 'killall -USR1 hcablk-reorder'
must wait_until target 30 'dd if=/dev/mapper/above bs=512 skip=1 count=1 iflag=direct status=none | grep -q new'
# The page, with the old second sector, is written back and reclaimed.
must on target 'yes odd | dd of=/dev/mapper/above bs=512 count=1 iflag=fullblock conv=notrunc,fsync status=none && echo 1 > /proc/sys/vm/drop_caches'
silent "the page was written back over the write" on target 'dd if=/dev/mapper/above bs=512 skip=1 count=1 iflag=direct status=none | tr -d "\\0"'
must on target 'killall -USR2 hcablk-reorder'
check "the write is answered" join writer
same "the client's sector reads as the client wrote it" new "$(sector 1)"
same "the target's sector reads as the target wrote it" odd "$(sector 0)"
release other
disconnect c1 vol1
must on target 'hcablk target unexport vol1 && dmsetup remove above && killall hcablk-reorder'
check "the drive ends" join drive
must wait_until target 30 'rmmod nbd'
