#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: when the RDMA device is removed under I/O, on either side, requests fail and nothing hangs.
# turn: 4
# takes: 20
# waits: yes
# timeout: 480

. "${0%/*}/../lib/lib.sh"

export_volume vol1 "$drive" c1 c2
connect c1 vol1 --io-timeout 5
start_load one c1 "$device"
check "the client's RDMA device is removed" on c1 "rdma link delete $rdma_link"
ends_within one 40000 "client's RDMA device removed"
check "the client disconnects" wait_until c1 30 'hcablk disconnect --if-exists vol1'
check "the client unloads" on c1 'rmmod hcablk hcablk_core'
must on c1 "rdma link add $rdma_link type $rdma netdev eth0"
check "the target ends the session" wait_until target 60 "[ -z \"\$(cat $target/volumes/vol1/clients)\" ]"

must wait_until c1 60 "rdma link show $rdma_link/1 | grep 'state ACTIVE'"
connect c1 vol1 --io-timeout 5
start_load two c1 "$device"
check "the target's RDMA device is removed" on target "rdma link delete $rdma_link"
ends_within two 40000 "target's RDMA device removed"
check "the target unloads" on target 'hcablk target unexport --force vol1; hcablk target unlisten --all;
	rmmod hcablk_target hcablk_core'
must on target "rdma link add $rdma_link type $rdma netdev br0"
check "the client disconnects again" wait_until c1 30 'hcablk disconnect --if-exists vol1'
export_volume vol1 "$drive" c1
connect c1 vol1
check "the volume connects and works again" on c1 "hcablk-scatter $device random 74 16"
disconnect c1 vol1

# soft-iWARP's connections are TCP connections.
[ "$rdma" = rxe ] || exit 0
# A new device numbers its queue pairs from the start, and the target still has queue pairs with those numbers: its connection
# manager refuses them.
device_anew() {
	must on c1 "ip link set eth0 down && rdma link delete $rdma_link"
	must wait_until c1 30 'hcablk disconnect --if-exists vol1'
	must on c1 "ip link set eth0 up && rdma link add $rdma_link type $rdma netdev eth0"
	must wait_until c1 60 "rdma link show $rdma_link/1 | grep 'state ACTIVE'"
}
device_anew
must wait_until c1 60 "ping -c 1 -W 1 $target_address"
connect c1 vol1 --keep-alive-tmo 600
# The target's own keep-alives notice a lost client within ten seconds, which is too short for a slow guest to create a
# device.
must vm pause target
device_anew
must vm resume target
check "a client whose connections look like its former ones connects" \
	on c1 "hcablk connect $target_address vol1 --connect-timeout 60"
check "the client logs that it tries again" wait_log c1 60 'from before this host started again; trying again'
