#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: a disk with two paths continues over one when the other is lost, for any reason, and uses the lost one again when it is back.
# tier: heart
# turn: 7
# takes: 55
# waits: yes
# timeout: 900

. "${0%/*}/../lib/lib.sh"
. "${0%/*}/../lib/multi.sh"

two_cards 1 target c1
target_address=10.77.1.1
must on target "dd if=/dev/zero of=$drive bs=1M count=16 conv=fsync"
export_volume vol1 "$drive" c1
connect c1 vol1 --ctrl-loss-tmo 600 --queues 2
same "a disk begins with one path" live "$(on c1 "cat $initiator/vol1/state")"
add_path c1 vol1 1 10.77.2.1
check "the disk gets a second path while it is used" path_is c1 vol1 1 live
check "the disk is live with both paths" disk_is c1 vol1 live

# moves CARD: waits until requests use the card
moves() {
	local before
	before=$(sent_by c1 "$1")
	wait_until c1 60 "[ \$(cat /sys/class/net/$1/statistics/tx_packets) -gt $((before + 200)) ]"
}
ON_SECONDS=800 spawn writers c1 "exec hcablk-versions write $device 16 > /tmp/versions"
check "requests use the first path" moves path1
check "requests use the second path" moves path2
for card in path2 path1; do
	other=path$((3 - ${card#path}))
	cut $card
	check "$card is cut: the disk is degraded" disk_is c1 vol1 degraded
	check "$card is cut: requests use the other path" moves $other
	mend $card
	check "$card is mended: the disk is live" disk_is c1 vol1 live
	check "$card is mended: requests use it again" moves $card
done
must on c1 "rdma link delete ${rdma}2"
check "an RDMA device is removed: its path waits for it" path_is c1 vol1 1 waiting
check "the path's error has the reason" wait_until c1 30 "grep 'looking for an RDMA device that reaches the address failed' $initiator/vol1/paths/1/error"
check "requests use the other path without the RDMA device" moves path1
must on c1 "rdma link add ${rdma}2 type $rdma netdev path2"
check "the disk is live when the RDMA device is back" disk_is c1 vol1 live
check "requests use the path of the RDMA device again" moves path2

for policy in round-robin numa queue-depth; do
	must on c1 "echo $policy > $initiator/vol1/policy"
	same "the attribute shows the policy $policy" $policy "$(on c1 "cat $initiator/vol1/policy")"
	check "$policy: requests use the path" moves path1
done
refuse "an unknown policy is refused" on c1 "echo nearest > $initiator/vol1/policy"

must on c1 "echo 0 > $initiator/vol1/paths/1/enable"
same "the disk stays live when a path is disabled" live "$(on c1 "cat $initiator/vol1/state")"
check "requests use the remaining path" moves path1
must on c1 "rmdir $initiator/vol1/paths/1"
add_path c1 vol1 3 10.77.2.1
check "the path can be added under another number" disk_is c1 vol1 live
check "requests use the added path" moves path2

cut path1
cut path2
check "both paths are cut: requests wait" disk_is c1 vol1 queueing
mend path2
check "one path is mended: requests use it" moves path2
check "the disk is degraded with one path" disk_is c1 vol1 degraded
refuse "the only live path cannot be disabled" on c1 "echo 0 > $initiator/vol1/paths/3/enable"
mend path1
check "the disk is live when both paths are mended" disk_is c1 vol1 live

must on c1 'touch /tmp/stop'
check "readers never see data older than an acknowledged write" join writers
same "no request has failed" 0 "$(stat_of c1 $initiator/vol1 errors)"
less "some requests were issued again" 1 "$(stat_of c1 $initiator/vol1 retries)"
versions=$(on c1 'cat /tmp/versions; rm /tmp/versions /tmp/stop')
check "the drive has the acknowledged data" on target "echo '$versions' | hcablk-versions check $drive"
