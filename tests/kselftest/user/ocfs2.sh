#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: a node with the kernel's driver and a node whose disk a program serves mount one OCFS2 at the same time: each sees the other's files, appends and locks, a killed program is replaced, and a killed node leaves a sound file system.
# turn: 23
# takes: 160
# alone: OCFS2 fences a node that has not written for 60 s, however busy the machine is
# skips: siw debug
# timeout: 1500

. "${0%/*}/../lib/lib.sh"

[ "$rdma" = rxe ] || skip "the library needs memory windows, which soft-iWARP does not have"
on c2 'modprobe ublk_drv' || skip "the kernel has no ublk"

# serve COMMAND…: starts a program that serves c2's disk
serve() {
	must on c2 'modprobe -a ublk_drv rdma_ucm && rm -f /tmp/ublk'
	ON_SECONDS=900 spawn "$1" c2 "hcablk-ublk $* > /tmp/ublk 2>&1 & echo \$! > /tmp/pid; wait \$!"
	must wait_until c2 60 'grep -q ^/dev/ublkb0 /tmp/ublk'
}
declare -A disk_of
# mounts GUEST: mounts it in the background
mounts() {
	spawn "mount-$1" "$1" "mkdir -p /mnt/o && mount.ocfs2 ${disk_of[$1]} /mnt/o"
}

export_volume vol1 "$drive" --wwid=6f0c2b62-5f5e-4c0e-9d57-0b8f3e9b0a47 c1 c2
connect c1 vol1
disk_of[c1]=$device
serve add "$target_address" vol1
disk_of[c2]=/dev/ublkb0
ocfs2_start c1 c2
check "c1 makes an OCFS2" on c1 "mkfs.ocfs2 -q -x -N 4 -b 4096 -C 4096 --cluster-stack=o2cb --cluster-name=c ${disk_of[c1]} 65536"
# Both at the same time, since each waits some seconds for the other's heartbeat.
mounts c1
mounts c2
check "the node with the kernel's driver mounts the file system" join mount-c1
check "the node with a program mounts the file system" join mount-c2
check "c1 writes a file" on c1 'dd if=/dev/urandom of=/mnt/o/from-c1 bs=64k count=20 status=none && sync'
same "c2 reads c1's file" "$(on c1 'sha256sum < /mnt/o/from-c1')" "$(on c2 'sha256sum < /mnt/o/from-c1')"
check "c2 writes a file" on c2 'dd if=/dev/urandom of=/mnt/o/from-c2 bs=64k count=20 status=none && sync'
same "c1 reads c2's file" "$(on c2 'sha256sum < /mnt/o/from-c2')" "$(on c1 'sha256sum < /mnt/o/from-c2')"
check "c2 appends to c1's file" on c2 'echo more >> /mnt/o/from-c1'
same "c1 reads the text that c2 appended" more "$(on c1 'tail -c 5 /mnt/o/from-c1')"

# A lock of one node excludes the other.
ON_SECONDS=300 spawn holder c1 "flock -x /mnt/o/lock -c 'touch /tmp/held; until [ -e /tmp/release ]; do sleep 0.1; done'"
must wait_until c1 60 '[ -e /tmp/held ]'
refuse "c2 does not get a lock that c1 holds" on c2 'flock -n -x /mnt/o/lock -c true'
must on c1 'touch /tmp/release'
must join holder
check "c2 gets the lock when c1 has released it" on c2 'flock -x /mnt/o/lock -c true'

# The program is killed while both nodes write.
ON_SECONDS=400 spawn one c1 'for n in $(seq 30); do mkdir /mnt/o/one$n && echo $n > /mnt/o/one$n/f && sync || exit 1; done'
ON_SECONDS=400 spawn two c2 'for n in $(seq 30); do mkdir /mnt/o/two$n && echo $n > /mnt/o/two$n/f && sync || exit 1; done'
must wait_until c1 60 '[ -e /mnt/o/two3 ]'
must on c2 'kill -9 $(cat /tmp/pid)'
join add
serve recover 0
check "the program is killed: c1 keeps writing" join one
check "the program is killed: c2 keeps writing with the next program" join two
same "both nodes see the same files" "$(on c1 'ls /mnt/o')" "$(on c2 'ls /mnt/o')"
same "no file is missing" 62 "$(on c1 'ls -d /mnt/o/one* /mnt/o/two* /mnt/o/from* | wc -l')"

# The node is killed while it writes.
ON_SECONDS=400 spawn dies c2 'n=0; while :; do n=$((n + 1)); echo $n > /mnt/o/dies && sync || exit 1; done'
must wait_until c1 60 '[ -s /mnt/o/dies ]'
must vm kill c2
ON_SECONDS=300 check "c1 reads and writes the file that the killed node was writing" on c1 'cat /mnt/o/dies > /tmp/dies && echo mine > /mnt/o/dies && sync'
must vm start c2
serve add "$target_address" vol1
ocfs2_start c2
mounts c2
check "the killed node has booted and mounts the file system" join mount-c2
same "the booted node reads what c1 wrote meanwhile" mine "$(on c2 'cat /mnt/o/dies')"
for guest in c1 c2; do
	check "$guest unmounts the file system" on $guest 'umount /mnt/o'
done
check "the file system is sound" on c2 "fsck.ocfs2 -fn ${disk_of[c2]}"
ocfs2_stop c1 c2
must on c2 'hcablk-ublk remove 0'
