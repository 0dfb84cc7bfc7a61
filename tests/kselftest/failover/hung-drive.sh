#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: while the drive hangs, the requests of a lost path wait for it, requests of another drive continue over the other path, and a forced disconnect ends all of them.
# turn: 21
# takes: 30
# waits: yes
# skips: siw

. "${0%/*}/../lib/lib.sh"
. "${0%/*}/../lib/multi.sh"

[ "$rdma" != siw ] || skip "TCP notices a silent peer only when a request gets no response in time"
two_cards 1 target c1
target_address=10.77.1.1
# The test can make the volume's first half hang; the second half never does.
must on target "modprobe dm_mod && echo '0 65536 linear $drive 0' | dmsetup create gate && dmsetup mknodes &&
	printf '0 65536 linear /dev/mapper/gate 0\n65536 65536 linear $drive2 0\n' | dmsetup create both && dmsetup mknodes"
export_volume vol1 /dev/mapper/both --wwid=6f0c2b62-5f5e-4c0e-9d57-0b8f3e9b0a03 c1
begin() {
	connect c1 vol1 --ctrl-loss-tmo 600 --queues 2 --io-timeout 120
	add_path c1 vol1 1 10.77.2.1
	must path_is c1 vol1 1 live
	must on c1 "echo round-robin > $initiator/vol1/policy"
}
# hold: hangs the first half's drive with four writes of 64 KiB, spread over both paths; then one path is lost
hold() {
	must on target 'dmsetup suspend --nolockfs gate'
	for n in 1 2 3 4; do
		spawn held$n c1 "dd if=/dev/urandom of=$device bs=64k seek=$n count=1 oflag=direct"
	done
	must wait_until c1 30 "[ \$(awk '{ print \$2 }' /sys/block/$disk/inflight) = 4 ]"
	cut path1
	must disk_is c1 vol1 degraded
}
begin
hold
for n in 513 514 515; do
	check "a write to the other drive succeeds while the first one hangs ($n)" on c1 "dd if=/dev/zero of=$device bs=64k seek=$n count=1 oflag=direct"
done
same "the four writes wait" 4 "$(on c1 "awk '{ print \$2 }' /sys/block/$disk/inflight")"
# Statistics are read while the lost path's session ends.
before=$(counters c1 vol1)
add_path c1 vol1 2 10.77.2.99
silent "no counter decreases while a path waits for its fence" went_back "$before" "$(counters c1 vol1)"
must on target 'dmsetup resume gate'
for n in 1 2 3 4; do
	check "write $n succeeds when the drive answers" join held$n
done
silent "no counter decreases after the wait" went_back "$before" "$(counters c1 vol1)"
must on c1 "echo 0 > $initiator/vol1/paths/2/enable && rmdir $initiator/vol1/paths/2"
mend path1
check "all paths are live again" disk_is c1 vol1 live
less "the lost path's requests were issued again" 0 "$(stat_of c1 $initiator/vol1 retries)"
same "the client has no errors" 0 "$(stat_of c1 $initiator/vol1 errors)"
# The RDMA device of a path is removed while the drive hangs: the hang must not delay the removal.
before=$(stat_of c1 $initiator/vol1 retries)
must on target 'dmsetup suspend --nolockfs gate'
for n in 1 2 3 4; do
	spawn held$n c1 "dd if=/dev/urandom of=$device bs=64k seek=$n count=1 oflag=direct"
done
must wait_until c1 30 "[ \$(awk '{ print \$2 }' /sys/block/$disk/inflight) = 4 ]"
counted=$(counters c1 vol1)
ON_SECONDS=$((40 * slow)) check "a path's RDMA device is removed while the drive hangs" on c1 "rdma link delete ${rdma}2"
same "the writes of that path wait" 4 "$(on c1 "awk '{ print \$2 }' /sys/block/$disk/inflight")"
must on target 'dmsetup resume gate'
for n in 1 2 3 4; do
	check "write $n succeeds after the removal" join held$n
done
check "the path waits for its RDMA device" path_is c1 vol1 1 waiting
less "the requests of the removed device's path were issued again" "$before" "$(stat_of c1 $initiator/vol1 retries)"
same "the client has no errors after the removal" 0 "$(stat_of c1 $initiator/vol1 errors)"
silent "no counter decreased during the removal" went_back "$counted" "$(counters c1 vol1)"
must on c1 "rdma link add ${rdma}2 type $rdma netdev path2"
must disk_is c1 vol1 live
hold
started=$(now_ms)
check "a forced disconnect ends requests that wait for the fence" on c1 "echo 1 > $initiator/vol1/force_disconnect"
within "the forced disconnect ends within $((20 * slow)) s" $(($(now_ms) - started)) $((20000 * slow))
for n in 1 2 3 4; do
	refuse "write $n fails" join held$n
done
must on target 'dmsetup resume gate'
mend path1
must wait_until target 60 "[ -z \"\$(cat $target/volumes/vol1/clients)\" ]"
must on target 'hcablk target unexport vol1 && dmsetup remove both && dmsetup remove gate'
