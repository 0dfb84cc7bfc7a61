#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: when the target's drive or file grows or shrinks, the disks of all clients follow while they are open and under load; one that goes ends no session.
# group: paths
# waits: yes
# timeout: 300

. "${0%/*}/lib.sh"

# has GUEST MIB: the guest's disk gets to this size.
has() {
	wait_until "$1" 30 "[ \$(blockdev --getsize64 $device) = $(($2 << 20)) ]"
}

# resize MIB
resize() {
	on target "truncate -s $1M /tmp/image && losetup -c /dev/loop0"
}

must on target 'modprobe loop max_loop=1 && truncate -s 64M /tmp/image && losetup /dev/loop0 /tmp/image'
export_volume vol1 /dev/loop0 c1 c2
connect c1 vol1
connect c2 vol1
same "both begin with the same size" "$((64 << 20)) $((64 << 20))" \
	"$(on c1 "blockdev --getsize64 $device") $(on c2 "blockdev --getsize64 $device")"
ON_SECONDS=300 spawn holder c2 "exec sleep 300 < $device"
ON_SECONDS=200 spawn load c1 "until [ -e /tmp/stop ]; do fio --name=v --filename=$device --direct=1 --ioengine=libaio --rw=randrw \
	--bs=4k --iodepth=8 --size=1M --verify=crc32c --verify_fatal=1 --allow_file_create=0 || exit 1; done"

must resize 96
check "a client under load follows what grows" has c1 96
check "so does an idle one" has c2 96
check "what is new is read and written" on c2 "yes new | dd of=/tmp/data bs=1M count=32 iflag=fullblock &&
	dd if=/tmp/data of=$device bs=1M seek=64 oflag=direct && dd if=$device bs=1M skip=64 iflag=direct | cmp - /tmp/data"
must resize 80
check "they follow what shrinks" has c1 80
check "all of them" has c2 80
same "nothing is read beyond the new end" 0 "$(on c2 "dd if=$device bs=1M skip=80 count=1 iflag=direct | wc -c")"
must on c1 'touch /tmp/stop'
check "the load saw right data only" join load
must on c1 'rm /tmp/stop'
same "and the sessions are those that were" "live live" "$(on c1 "cat $initiator/vol1/state") $(on c2 "cat $initiator/vol1/state")"
same "without a breach of the protocol" "0 0" \
	"$(stat_of c1 $initiator/vol1 protocol_errors) $(stat_of target $target/volumes/vol1 protocol_errors)"
must on c2 'killall sleep'
join holder
disconnect c1 vol1
disconnect c2 vol1
must on target 'hcablk target unexport vol1 && losetup -d /dev/loop0'

# A file, on a file system of its own so that not all of its blocks are in memory.
must on target "modprobe ext4; mkfs.ext4 -q -F -b 4096 $drive2 48M; mkdir -p /mnt/files && mount $drive2 /mnt/files"
for mode in direct cached; do
	must on target 'truncate -s 16M /mnt/files/image'
	export_volume file /mnt/files/image --mode=$mode c1
	connect c1 file
	has c1 16 || fail "$mode: a file's size is the disk's"
	ON_SECONDS=300 spawn holder c1 "exec sleep 300 < $device"
	must on target 'truncate -s 24M /mnt/files/image'
	check "$mode: a file that grows is followed" has c1 24
	check "$mode: what is new is read and written" on c1 "yes new | dd of=/tmp/data bs=1M count=8 iflag=fullblock &&
		dd if=/tmp/data of=$device bs=1M seek=16 oflag=direct && dd if=$device bs=1M skip=16 iflag=direct | cmp - /tmp/data"
	must on target 'truncate -s 12M /mnt/files/image'
	check "$mode: so is one that shrinks" has c1 12
	same "$mode: nothing is read beyond its new end" 0 "$(on c1 "dd if=$device bs=1M skip=12 count=1 iflag=direct | wc -c")"
	refuse "$mode: nor written" on c1 "dd if=/tmp/data of=$device bs=1M seek=12 count=1 oflag=direct"
	same "$mode: the file is as long as it was made" $((12 << 20)) "$(on target 'stat -c %s /mnt/files/image')"
	must on c1 'killall sleep'
	join holder
	same "$mode: in one session, and in order" "live 0" \
		"$(on c1 "cat $initiator/file/state") $(stat_of c1 $initiator/file protocol_errors)"
	disconnect c1 file
	must on target 'hcablk target unexport file'
done
must on target 'umount /mnt/files'

# A drive that is gone has no size to tell.
must on target 'modprobe null_blk nr_devices=0 && mkdir /sys/kernel/config/nullb/goes && cd /sys/kernel/config/nullb/goes &&
	echo 64 > size && echo 1 > memory_backed && echo 1 > power'
export_volume goes /dev/goes c1
connect c1 goes
must on target 'echo 0 > /sys/kernel/config/nullb/goes/power'
asked=$(stat_of c1 $initiator/goes receives)
must wait_until c1 30 "grep -q failed $initiator/goes/state || awk '\$1 == \"receives\" { exit \$2 <= $asked }' $initiator/goes/stats"
same "the session outlives the drive" "live 0" "$(on c1 "cat $initiator/goes/state") $(stat_of c1 $initiator/goes protocol_errors)"
refuse "and its requests fail" on c1 "dd if=$device of=/dev/null bs=4k count=1 iflag=direct"
disconnect c1 goes
