#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: while the drive hangs, what a lost path had waits for it, what it does not concern goes on by the other, and force ends it all.
# turn: 21
# takes: 30
# waits: yes
# skips: siw

. "${0%/*}/../lib/lib.sh"
. "${0%/*}/../lib/multi.sh"

[ "$rdma" != siw ] || skip "TCP notices a silent peer only when a request is not answered in time"
two_cards 1 target c1
target_address=10.77.1.1
# The volume's first half can be held up, as by a drive that hangs; the second cannot.
must on target "modprobe dm_mod && echo '0 65536 linear $drive 0' | dmsetup create gate && dmsetup mknodes &&
	printf '0 65536 linear /dev/mapper/gate 0\n65536 65536 linear $drive2 0\n' | dmsetup create both && dmsetup mknodes"
export_volume vol1 /dev/mapper/both --wwid=6f0c2b62-5f5e-4c0e-9d57-0b8f3e9b0a03 c1
begin() {
	connect c1 vol1 --ctrl-loss-tmo 600 --queues 2 --io-timeout 120
	add_path c1 vol1 1 10.77.2.1
	must path_is c1 vol1 1 live
	must on c1 "echo round-robin > $initiator/vol1/policy"
}
# hold: the first half's drive stops, with a write of 64 KiB of each path on its way to it; then one path is lost
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
	check "meanwhile the other drive is written to ($n)" on c1 "dd if=/dev/zero of=$device bs=64k seek=$n count=1 oflag=direct"
done
same "the four wait" 4 "$(on c1 "awk '{ print \$2 }' /sys/block/$disk/inflight")"
# While the lost path's session ends something else is shown of the disk.
before=$(counters c1 vol1)
add_path c1 vol1 2 10.77.2.99
silent "no counter goes back while a path waits for its fence" went_back "$before" "$(counters c1 vol1)"
must on target 'dmsetup resume gate'
for n in 1 2 3 4; do
	check "write $n is done after all" join held$n
done
silent "nor when it has waited" went_back "$before" "$(counters c1 vol1)"
must on c1 "echo 0 > $initiator/vol1/paths/2/enable && rmdir $initiator/vol1/paths/2"
mend path1
check "all paths come back" disk_is c1 vol1 live
less "what the lost path had was issued again" 0 "$(stat_of c1 $initiator/vol1 retries)"
same "nobody saw an error" 0 "$(stat_of c1 $initiator/vol1 errors)"
# The RDMA device of a path goes while the drive hangs: it is not held until the drive goes on.
before=$(stat_of c1 $initiator/vol1 retries)
must on target 'dmsetup suspend --nolockfs gate'
for n in 1 2 3 4; do
	spawn held$n c1 "dd if=/dev/urandom of=$device bs=64k seek=$n count=1 oflag=direct"
done
must wait_until c1 30 "[ \$(awk '{ print \$2 }' /sys/block/$disk/inflight) = 4 ]"
counted=$(counters c1 vol1)
ON_SECONDS=$((40 * slow)) check "a path's RDMA device goes while the drive hangs" on c1 "rdma link delete ${rdma}2"
same "what that path had waits" 4 "$(on c1 "awk '{ print \$2 }' /sys/block/$disk/inflight")"
must on target 'dmsetup resume gate'
for n in 1 2 3 4; do
	check "write $n is done after the device went" join held$n
done
check "the path waits for it" path_is c1 vol1 1 waiting
less "what it had was issued again" "$before" "$(stat_of c1 $initiator/vol1 retries)"
same "still nobody saw an error" 0 "$(stat_of c1 $initiator/vol1 errors)"
silent "and no counter went back" went_back "$counted" "$(counters c1 vol1)"
must on c1 "rdma link add ${rdma}2 type $rdma netdev path2"
must disk_is c1 vol1 live
hold
started=$(now_ms)
check "force ends what waits for the fence" on c1 "echo 1 > $initiator/vol1/force_disconnect"
within "within 20 s" $(($(now_ms) - started)) $((20000 * slow))
for n in 1 2 3 4; do
	refuse "write $n fails" join held$n
done
must on target 'dmsetup resume gate'
mend path1
must wait_until target 60 "[ -z \"\$(cat $target/volumes/vol1/clients)\" ]"
must on target 'hcablk target unexport vol1 && dmsetup remove both && dmsetup remove gate'
