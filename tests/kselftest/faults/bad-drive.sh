#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: of a bad drive exactly the bad blocks fail, each kind of error is the same at the client, and a pause is none.
# turn: 7
# takes: 20
# timeout: 480

. "${0%/*}/../lib/lib.sh"

# table TEXT: what the drive is made of from now on.
table() {
	must on target "dmsetup suspend bad && printf '$1\n' | dmsetup load bad && dmsetup resume bad"
}
# 64 MiB, of which two blocks of 4 KiB are bad.
size=131072
holes="0 2048 linear $drive2 0\n2048 8 error\n2056 17944 linear $drive2 2056\n20000 8 error\n20008 $((size - 20008)) linear $drive2 20008"
must on target "modprobe -a dm_mod dm_flakey && printf '0 $size linear $drive2 0\n' | dmsetup create bad"
export_volume bad "/dev/$(on target 'dmsetup info -c --noheadings -o blkdevname bad')" c1
connect c1 bad

check "a good drive takes everything" on c1 "dd if=/dev/urandom of=/tmp/data bs=1M count=16 && dd if=/tmp/data of=$device bs=1M oflag=direct"
table "$holes"
# Every block by itself: 4 KiB number 256 and 2500 are the bad ones.
ON_SECONDS=100
same "exactly the bad blocks are not read" "256 2500 " "$(on c1 "for n in \$(seq 250 260) \$(seq 2495 2505); do
	if dd if=$device of=/tmp/block bs=4k skip=\$n count=1 iflag=direct 2> /dev/null; then
		dd if=/tmp/data bs=4k skip=\$n count=1 2> /dev/null | cmp - /tmp/block || echo wrong \$n
	else printf '%s ' \$n; fi
done")"
same "exactly they are not written" "256 2500 " "$(on c1 "for n in \$(seq 250 260) \$(seq 2495 2505); do
	dd if=/tmp/data of=$device bs=4k skip=\$n seek=\$n count=1 oflag=direct conv=notrunc 2> /dev/null || printf '%s ' \$n
done")"
like "the error is the drive's" "Input/output error" "$(on c1 "dd if=$device of=/dev/null bs=4k skip=256 count=1 iflag=direct 2>&1")"
# Many requests at a time, a few of them bad: those in flight with them are unharmed.
refuse "a load that meets a bad block sees it" fio c1 "--name=r --filename=$device --rw=randread --bs=4k --iodepth=64 --size=$(few 16)M"
check "one beside it does not" fio c1 "--name=v --filename=$device --rw=randrw --bs=4k --iodepth=64 --offset=16M --size=$(few 2)M \
	--verify=crc32c --verify_fatal=1"
errors=$(stat_of c1 $initiator/bad errors)
less "errors are counted" 5 "$errors"
same "client and target count the same" "$errors" "$(stat_of target $target/volumes/bad errors)"

table "0 $size flakey $drive2 0 0 3600 1 error_writes"
refuse "a drive that takes no writes refuses them" on c1 "dd if=/dev/zero of=$device bs=4k count=1 oflag=direct conv=notrunc"
check "and is read" on c1 "dd if=$device bs=1M count=4 iflag=direct of=/tmp/block && cmp -n $((4 << 20)) /tmp/block /tmp/data"
table "0 $size error"
refuse "a dead drive is not read" on c1 "dd if=$device of=/dev/null bs=4k count=1 iflag=direct"
refuse "a flush of a dead drive fails" on c1 "dd if=/dev/zero of=$device bs=4k count=1 conv=fsync"
table "0 $size linear $drive2 0"
check "when the drive is well, so is the disk" on c1 "dd if=$device bs=1M count=16 iflag=direct of=/tmp/block && cmp /tmp/block /tmp/data"

# A drive that is away for a while, shorter than the I/O timeout.
spawn load c1 "fio --name=v --filename=$device --direct=1 --ioengine=libaio --rw=randrw --bs=16k --iodepth=16 --offset=16M \
	--size=$(few 8)M --verify=crc32c --verify_fatal=1"
must wait_until c1 30 'pidof fio'
must on target 'dmsetup suspend bad'
must wait_until c1 60 "awk '{ exit !(\$9 >= 16) }' /sys/block/$disk/stat"
must on target 'dmsetup resume bad'
check "requests wait for a drive that pauses, and are right" join load
same "the connection lives" live "$(on c1 "cat $initiator/bad/state")"
disconnect c1 bad
must on target 'hcablk target unexport bad && dmsetup remove bad'

# No space: a drive that is a file on a file system that is full.
must on target "modprobe loop; mkdir -p /mnt/full && mount -t tmpfs -o size=2M none /mnt/full &&
	truncate -s 16M /mnt/full/disk && losetup /dev/loop1 /mnt/full/disk"
export_volume full /dev/loop1 c1
connect c1 full
like "a full drive is told as such" "No space left" "$(on c1 "dd if=/dev/zero of=$device bs=256k count=32 oflag=direct 2>&1")"
check "what is there is read" on c1 "dd if=$device of=/dev/null bs=64k count=4 iflag=direct"
disconnect c1 full
must on target 'hcablk target unexport full && losetup -d /dev/loop1 && umount /mnt/full'

on c1 'rm -f /tmp/data /tmp/block'
