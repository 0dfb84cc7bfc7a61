#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: a client sees errors of exactly the bad blocks of a drive, with the drive's kind of error, and no error when the drive pauses.
# turn: 7
# takes: 20
# timeout: 480

. "${0%/*}/../lib/lib.sh"

# table TEXT: replaces the device-mapper table of the drive.
table() {
	must on target "dmsetup suspend bad && printf '$1\n' | dmsetup load bad && dmsetup resume bad"
}
# 64 MiB, of which two blocks of 4 KiB are bad.
size=131072
holes="0 2048 linear $drive2 0\n2048 8 error\n2056 17944 linear $drive2 2056\n20000 8 error\n20008 $((size - 20008)) linear $drive2 20008"
must on target "modprobe -a dm_mod dm_flakey && printf '0 $size linear $drive2 0\n' | dmsetup create bad"
export_volume bad "/dev/$(on target 'dmsetup info -c --noheadings -o blkdevname bad')" c1
connect c1 bad

check "a good drive is written" on c1 "dd if=/dev/urandom of=/tmp/data bs=1M count=16 && dd if=/tmp/data of=$device bs=1M oflag=direct"
table "$holes"
# Each block by itself: 256 and 2500 are the bad blocks of 4 KiB.
ON_SECONDS=100
same "reads of exactly the bad blocks fail" "256 2500 " "$(on c1 "for n in \$(seq 250 260) \$(seq 2495 2505); do
	if dd if=$device of=/tmp/block bs=4k skip=\$n count=1 iflag=direct 2> /dev/null; then
		dd if=/tmp/data bs=4k skip=\$n count=1 2> /dev/null | cmp - /tmp/block || echo wrong \$n
	else printf '%s ' \$n; fi
done")"
same "writes of exactly the bad blocks fail" "256 2500 " "$(on c1 "for n in \$(seq 250 260) \$(seq 2495 2505); do
	dd if=/tmp/data of=$device bs=4k skip=\$n seek=\$n count=1 oflag=direct conv=notrunc 2> /dev/null || printf '%s ' \$n
done")"
like "the client gets the drive's error" "Input/output error" "$(on c1 "dd if=$device of=/dev/null bs=4k skip=256 count=1 iflag=direct 2>&1")"
# Many requests at a time, a few of them bad: the other requests in flight must succeed.
refuse "a load that reads a bad block gets an error" fio c1 "--name=r --filename=$device --rw=randread --bs=4k --iodepth=64 --size=$(few 16)M"
check "fio verifies a load beside the bad blocks" fio c1 "--name=v --filename=$device --rw=randrw --bs=4k --iodepth=64 --offset=16M --size=$(few 2)M \
	--verify=crc32c --verify_fatal=1"
errors=$(stat_of c1 $initiator/bad errors)
less "the client counts the errors" 5 "$errors"
same "client and target count the same number of errors" "$errors" "$(stat_of target $target/volumes/bad errors)"

table "0 $size flakey $drive2 0 0 3600 1 error_writes"
refuse "a write fails when the drive fails writes" on c1 "dd if=/dev/zero of=$device bs=4k count=1 oflag=direct conv=notrunc"
check "a read succeeds when the drive fails writes" on c1 "dd if=$device bs=1M count=4 iflag=direct of=/tmp/block && cmp -n $((4 << 20)) /tmp/block /tmp/data"
table "0 $size error"
refuse "a read of a dead drive fails" on c1 "dd if=$device of=/dev/null bs=4k count=1 iflag=direct"
refuse "a flush of a dead drive fails" on c1 "dd if=/dev/zero of=$device bs=4k count=1 conv=fsync"
table "0 $size linear $drive2 0"
check "the data is read when the drive is healthy again" on c1 "dd if=$device bs=1M count=16 iflag=direct of=/tmp/block && cmp /tmp/block /tmp/data"

# A drive that pauses for less than the I/O timeout.
spawn load c1 "fio --name=v --filename=$device --direct=1 --ioengine=libaio --rw=randrw --bs=16k --iodepth=16 --offset=16M \
	--size=$(few 8)M --verify=crc32c --verify_fatal=1"
must wait_until c1 30 'pidof fio'
must on target 'dmsetup suspend bad'
must wait_until c1 60 "awk '{ exit !(\$9 >= 16) }' /sys/block/$disk/stat"
must on target 'dmsetup resume bad'
check "requests wait for a drive that pauses, and their data is right" join load
same "the connection stays live" live "$(on c1 "cat $initiator/bad/state")"
disconnect c1 bad
must on target 'hcablk target unexport bad && dmsetup remove bad'

# No space: the drive is a file on a full file system.
must on target "modprobe loop; mkdir -p /mnt/full && mount -t tmpfs -o size=2M none /mnt/full &&
	truncate -s 16M /mnt/full/disk && losetup /dev/loop1 /mnt/full/disk"
export_volume full /dev/loop1 c1
connect c1 full
like "a full drive is reported as no space left" "No space left" "$(on c1 "dd if=/dev/zero of=$device bs=256k count=32 oflag=direct 2>&1")"
check "a full drive can be read" on c1 "dd if=$device of=/dev/null bs=64k count=4 iflag=direct"
disconnect c1 full
must on target 'hcablk target unexport full && losetup -d /dev/loop1 && umount /mnt/full'

on c1 'rm -f /tmp/data /tmp/block'
