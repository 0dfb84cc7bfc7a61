#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: a path is fenced over another path although hanging requests hold every credit of the other path's queue pairs.
# turn: 22
# takes: 15
# waits: yes

. "${0%/*}/../lib/lib.sh"
. "${0%/*}/../lib/multi.sh"

two_cards 1 target c1
target_address=10.77.1.1
# The test can make each half of the volume hang.
must on target "modprobe dm_mod && echo '0 65536 linear $drive 0' | dmsetup create first &&
	echo '0 65536 linear $drive2 0' | dmsetup create second && dmsetup mknodes &&
	printf '0 65536 linear /dev/mapper/first 0\n65536 65536 linear /dev/mapper/second 0\n' | dmsetup create both && dmsetup mknodes"
must on target 'hcablk target listen --queue-credits 1'
export_volume vol1 /dev/mapper/both --wwid=6f0c2b62-5f5e-4c0e-9d57-0b8f3e9b0a06 c1
# in_flight N: waits until the disk has N requests in flight
in_flight() {
	must wait_until c1 30 "[ \$(awk '{ print \$1 + \$2 }' /sys/block/$disk/inflight) = $1 ]"
}
# hang NUMBER SEEK: starts a write of 64 KiB, the NUMBERth that hangs
hang() {
	ON_SECONDS=300 spawn "held$1" c1 "dd if=/dev/urandom of=$device bs=64k seek=$2 count=1 oflag=direct"
	in_flight "$1"
}
connect c1 vol1 --ctrl-loss-tmo 600 --queues 1 --queue-depth 4 --io-timeout 120 --keep-alive-tmo 2
must on target 'dmsetup suspend --nolockfs first && dmsetup suspend --nolockfs second'
# The first write uses the only path, the second the path with fewer requests. Each path has one credit.
hang 1 1
add_path c1 vol1 1 10.77.2.1
must path_is c1 vol1 1 live
hang 2 513
cut path1
must disk_is c1 vol1 degraded
same "the lost path's write is not issued again before the fence" 0 "$(stat_of c1 $initiator/vol1 retries)"
must on target 'dmsetup resume first'
check "the lost path is fenced although the other queue pair has no credit left" wait_until c1 30 \
	"grep -qx 'retries 1' $initiator/vol1/stats"
same "the other path's write still hangs in a live session" "live" "$(on c1 "cat $initiator/vol1/paths/1/state")"
must on target 'dmsetup resume second'
for n in 1 2; do
	check "write $n succeeds" join held$n
done
same "the client has no errors" 0 "$(stat_of c1 $initiator/vol1 errors)"
mend path1
check "all paths are live again" disk_is c1 vol1 live
disconnect c1 vol1
must on target 'hcablk target unexport vol1 && dmsetup remove both && dmsetup remove first && dmsetup remove second'
