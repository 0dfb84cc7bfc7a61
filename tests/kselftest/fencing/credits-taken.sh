#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: a path is fenced by another one although every credit of that one's queue pairs is taken by requests that hang.
# turn: 22
# takes: 15
# waits: yes

. "${0%/*}/../lib/lib.sh"
. "${0%/*}/../lib/multi.sh"

two_cards 1 target c1
target_address=10.77.1.1
# Two halves, each of which can be held up.
must on target "modprobe dm_mod && echo '0 65536 linear $drive 0' | dmsetup create first &&
	echo '0 65536 linear $drive2 0' | dmsetup create second && dmsetup mknodes &&
	printf '0 65536 linear /dev/mapper/first 0\n65536 65536 linear /dev/mapper/second 0\n' | dmsetup create both && dmsetup mknodes"
must on target 'hcablk target listen --queue-credits 1'
export_volume vol1 /dev/mapper/both --wwid=6f0c2b62-5f5e-4c0e-9d57-0b8f3e9b0a06 c1
# in_flight N: so many requests of the disk are
in_flight() {
	must wait_until c1 30 "[ \$(awk '{ print \$1 + \$2 }' /sys/block/$disk/inflight) = $1 ]"
}
# hang NUMBER SEEK: a write of 64 KiB
hang() {
	ON_SECONDS=300 spawn "held$1" c1 "dd if=/dev/urandom of=$device bs=64k seek=$2 count=1 oflag=direct"
	in_flight "$1"
}
connect c1 vol1 --ctrl-loss-tmo 600 --queues 1 --queue-depth 4 --io-timeout 120 --keep-alive-tmo 2
must on target 'dmsetup suspend --nolockfs first && dmsetup suspend --nolockfs second'
# By the only path; and then by the one that has fewer. Each has one credit.
hang 1 1
add_path c1 vol1 1 10.77.2.1
must path_is c1 vol1 1 live
hang 2 513
cut path1
must disk_is c1 vol1 degraded
same "what the lost path had waits for its fence" 0 "$(stat_of c1 $initiator/vol1 retries)"
must on target 'dmsetup resume first'
check "it is fenced while nothing more can be asked on the other's queue pair" wait_until c1 30 \
	"grep -qx 'retries 1' $initiator/vol1/stats"
same "whose own request still hangs" "live" "$(on c1 "cat $initiator/vol1/paths/1/state")"
must on target 'dmsetup resume second'
for n in 1 2; do
	check "write $n is done" join held$n
done
same "nobody saw an error" 0 "$(stat_of c1 $initiator/vol1 errors)"
mend path1
check "all paths come back" disk_is c1 vol1 live
disconnect c1 vol1
must on target 'hcablk target unexport vol1 && dmsetup remove both && dmsetup remove first && dmsetup remove second'
