#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: when the target's drive or file grows or shrinks, the disks of all clients follow while they are open and under load; a drive that is removed ends no session.
# turn: 18
# takes: 110
# waits: yes
# timeout: 480

. "${0%/*}/../lib/lib.sh"

# All volumes change at the same time: a loop device, a file in two modes, and a drive that is removed. Test admin/notices is
# about how soon clients are notified.
declare -A disk_of

# has GUEST VOLUME MIB: waits until the guest's disk has this size.
has() {
	wait_until "$1" 30 "[ \$(blockdev --getsize64 ${disk_of[$2]}) = $(($3 << 20)) ]"
}
# bytes GUEST VOLUME: prints the disk's size
bytes() {
	on "$1" "blockdev --getsize64 ${disk_of[$2]}"
}
# attach GUEST VOLUME: connects the volume, and remembers its disk
attach() {
	connect "$1" "$2"
	disk_of[$2]=$device
}
# resize MIB: changes the size of the loop device
resize() {
	on target "truncate -s $1M /tmp/image && losetup -c /dev/loop0"
}
# resize_files MIB: changes the size of both files
resize_files() {
	on target "truncate -s $1M /mnt/files/direct && truncate -s $1M /mnt/files/cached"
}

must on target 'modprobe loop max_loop=1 && truncate -s 64M /tmp/image && losetup /dev/loop0 /tmp/image'
export_volume vol1 /dev/loop0 c1 c2
# Files on a file system of their own, so that not all of their blocks are in memory.
must on target "modprobe ext4; mkfs.ext4 -q -F -b 4096 $drive2 96M; mkdir -p /mnt/files && mount $drive2 /mnt/files"
must resize_files 16
for mode in direct cached; do
	export_volume $mode /mnt/files/$mode --mode=$mode c1
done
must on target 'modprobe null_blk nr_devices=0 && mkdir /sys/kernel/config/nullb/goes && cd /sys/kernel/config/nullb/goes &&
	echo 64 > size && echo 1 > memory_backed && echo 1 > power'
export_volume goes /dev/goes c2

# vol1 is the first disk of each guest, so that both have it under one name.
attach c1 vol1
attach c2 vol1
attach c1 direct
attach c1 cached
attach c2 goes
same "the disks of both clients have the same size" "$((64 << 20)) $((64 << 20))" "$(bytes c1 vol1) $(bytes c2 vol1)"
same "a file's size is the disk's size" "$((16 << 20)) $((16 << 20))" "$(bytes c1 direct) $(bytes c1 cached)"
ON_SECONDS=1000 spawn holder c2 "exec sleep $((1000 * slow)) < ${disk_of[vol1]}"
ON_SECONDS=1000 spawn file_holder c1 "exec sleep $((1000 * slow)) < ${disk_of[direct]} 3< ${disk_of[cached]}"
ON_SECONDS=200 spawn load c1 "until [ -e /tmp/stop ]; do fio --name=v --filename=${disk_of[vol1]} --direct=1 --ioengine=libaio --rw=randrw \
	--bs=4k --iodepth=8 --size=1M --verify=crc32c --verify_fatal=1 --allow_file_create=0 || exit 1; done"

# new GUEST VOLUME MIB FROM: writes and reads MIB MiB from FROM MiB on
new() {
	on "$1" "yes new | dd of=/tmp/data bs=1M count=$3 iflag=fullblock && dd if=/tmp/data of=${disk_of[$2]} bs=1M seek=$4 oflag=direct &&
		dd if=${disk_of[$2]} bs=1M skip=$4 iflag=direct | cmp - /tmp/data"
}
must resize 96
must resize_files 24
check "the disk of a client under load grows" has c1 vol1 96
check "the disk of an idle client grows" has c2 vol1 96
check "the new blocks are read and written" new c2 vol1 32 64
for mode in direct cached; do
	check "$mode: the disk of a file grows" has c1 $mode 24
	check "$mode: the new blocks are read and written" new c1 $mode 8 16
done

# readable_bytes GUEST VOLUME MIB: prints how many bytes can be read from MIB MiB on
readable_bytes() {
	on "$1" "dd if=${disk_of[$2]} bs=1M skip=$3 count=1 iflag=direct | wc -c"
}
asked=$(stat_of c2 $initiator/goes keep_alives)
must on target 'echo 0 > /sys/kernel/config/nullb/goes/power'
must resize 80
must resize_files 12
check "the disk of a client under load shrinks" has c1 vol1 80
check "the disk of an idle client shrinks" has c2 vol1 80
same "a read beyond the new end returns nothing" 0 "$(readable_bytes c2 vol1 80)"
must on c1 'touch /tmp/stop'
check "the load reads only correct data" join load
must on c1 'rm /tmp/stop'
same "both clients still have their sessions" "live live" "$(on c1 "cat $initiator/vol1/state") $(on c2 "cat $initiator/vol1/state")"
same "client and target have no protocol errors" "0 0" \
	"$(stat_of c1 $initiator/vol1 protocol_errors) $(stat_of target $target/volumes/vol1 protocol_errors)"
for mode in direct cached; do
	check "$mode: the disk of a file shrinks" has c1 $mode 12
	same "$mode: a read beyond the new end returns nothing" 0 "$(readable_bytes c1 $mode 12)"
	refuse "$mode: a write beyond the new end fails" on c1 "dd if=/tmp/data of=${disk_of[$mode]} bs=1M seek=12 count=1 oflag=direct"
	same "$mode: the file keeps its new size" $((12 << 20)) "$(on target "stat -c %s /mnt/files/$mode")"
	same "$mode: the session is the first one, without protocol errors" "live 0" \
		"$(on c1 "cat $initiator/$mode/state") $(stat_of c1 $initiator/$mode protocol_errors)"
done

# A removed drive has no size to report.
must wait_until c2 30 "grep -q failed $initiator/goes/state || awk '\$1 == \"keep_alives\" { exit \$2 <= $asked + 1 }' $initiator/goes/stats"
same "the session stays live when the drive is removed" "live 0" "$(on c2 "cat $initiator/goes/state") $(stat_of c2 $initiator/goes protocol_errors)"
refuse "a read of the removed drive fails" on c2 "dd if=${disk_of[goes]} of=/dev/null bs=4k count=1 iflag=direct"

must on c1 'killall sleep; rm /tmp/data'
must on c2 'killall sleep; rm /tmp/data'
join holder
join file_holder
for volume in vol1 direct cached; do
	disconnect c1 $volume
done
disconnect c2 vol1
disconnect c2 goes
must on target 'for v in vol1 direct cached; do hcablk target unexport $v || exit; done; losetup -d /dev/loop0; umount /mnt/files'
