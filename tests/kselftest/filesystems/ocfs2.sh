#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: two clients have one OCFS2 file system mounted at the same time, and each reads what the other wrote.
# tier: heart
# turn: 3
# takes: 65
# timeout: 480

. "${0%/*}/../lib/lib.sh"

share c1 c2
ocfs2_start c1 c2
check "mkfs makes a file system" on c1 "mkfs.ocfs2 -q -x -N 4 -b 4096 -C 4096 --cluster-stack=o2cb --cluster-name=c $device 65536"
# Both at the same time, since each listens to the heartbeat for some seconds.
for guest in c1 c2; do
	spawn $guest $guest "mkdir -p /mnt/o && mount.ocfs2 $device /mnt/o"
done
for guest in c1 c2; do
	check "$guest mounts the file system" join $guest
done
check "c1 writes a file" on c1 'dd if=/dev/urandom of=/mnt/o/from-c1 bs=64k count=20 && sync'
same "c2 reads the file of c1" "$(on c1 'sha256sum < /mnt/o/from-c1')" "$(on c2 'sha256sum < /mnt/o/from-c1')"
check "c2 writes a file" on c2 'dd if=/dev/urandom of=/mnt/o/from-c2 bs=64k count=20 && sync'
same "c1 reads the file of c2" "$(on c2 'sha256sum < /mnt/o/from-c2')" "$(on c1 'sha256sum < /mnt/o/from-c2')"
check "c2 appends to the file of c1" on c2 'echo more >> /mnt/o/from-c1'
same "c1 reads the appended text" more "$(on c1 'tail -c 5 /mnt/o/from-c1')"
spawn one c1 'for n in $(seq 30); do mkdir /mnt/o/one$n && echo $n > /mnt/o/one$n/f || exit 1; done'
spawn two c2 'for n in $(seq 30); do mkdir /mnt/o/two$n && echo $n > /mnt/o/two$n/f || exit 1; done'
check "c1 makes directories" join one
check "c2 makes directories at the same time" join two
same "both clients see the same entries" "$(on c1 'ls /mnt/o')" "$(on c2 'ls /mnt/o')"
same "no entry is missing" 62 "$(on c1 'ls -d /mnt/o/one* /mnt/o/two* /mnt/o/from* | wc -l')"
for guest in c1 c2; do
	check "$guest unmounts the file system" on $guest 'umount /mnt/o'
done
check "fsck finds no error" on c1 "fsck.ocfs2 -fn $device"
ocfs2_stop c1 c2
