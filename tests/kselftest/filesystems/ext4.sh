#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: ext4 works on the disk, and another client later finds the files.
# tier: heart
# turn: 9
# takes: 40
# timeout: 480

. "${0%/*}/../lib/lib.sh"

share c1
must on c1 'modprobe ext4; mkdir -p /mnt/a'
check "mkfs makes a file system" on c1 "mkfs.ext4 -q -F $device 300M"
check "the file system is mounted" on c1 "mount -t ext4 $device /mnt/a"
check "files of all sizes are written" on c1 'cd /mnt/a && for n in $(seq 60); do
	dd if=/dev/urandom of=file$n bs=$((n * 997)) count=3 2> /dev/null || exit 1; done &&
	mkdir -p tree/a/b/c && cp file1 tree/a/b/c && ln file2 tree/link && sync && sha256sum file* > sums'
check "fio verifies writes with fsync" on c1 "fio --name=v --directory=/mnt/a --rw=randwrite --bs=4k --size=$(few 2)M --fsync=16 \
	--verify=crc32c --verify_fatal=1"
check "the files are right after their pages are dropped" on c1 'echo 3 > /proc/sys/vm/drop_caches; cd /mnt/a && sha256sum -c sums > /dev/null'
check "the file system is unmounted" on c1 'umount /mnt/a'
check "fsck finds no error" on c1 "e2fsck -fn $device"
disconnect c1 vol1
must on target "hcablk target allow vol1 $(host_id c2)"
connect c2 vol1
check "another client mounts the file system" on c2 "modprobe ext4; mkdir -p /mnt/a && mount -t ext4 $device /mnt/a"
check "the other client finds the files" on c2 'cd /mnt/a && sha256sum -c sums > /dev/null'
check "the other client unmounts the file system" on c2 'umount /mnt/a'
copied=$(stat_of c2 $initiator/vol1 copied_bytes)
less "only small reads were copied" "$copied" $(($(stat_of c2 $initiator/vol1 immediates) * 4096 + 1))
