#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: a port that listens at one address listens again by itself when the RDMA device of the address was made anew, and a disk comes back.
# turn: 23
# takes: 10
# guests: target c1

. "${0%/*}/../lib/lib.sh"

export_volume vol1 "$drive" c1
must on target "hcablk target unlisten --all && hcablk target listen --address $target_address --port 7744"
port=$(on target "echo $target/ports/*")
connect c1 vol1 --ctrl-loss-tmo 600 --reconnect-delay 1
netdev=$(on target "rdma link show" | sed -n "s/^link $rdma_link\\/1 .*netdev \\([^ ]*\\).*/\\1/p")
must on target "rdma link delete $rdma_link"
check "without a device it says why it does not listen" wait_until target 30 "grep -q 'error -19' $port/error"
same "it stays enabled" 1 "$(on target "cat $port/enable")"
must on target "rdma link add $rdma_link type $rdma netdev $netdev"
check "it listens again" wait_until target 30 "! grep -q . $port/error"
check "the disk is connected again" wait_until c1 60 "grep -q live $initiator/vol1/state"
check "and is written" on c1 "dd if=/dev/zero of=$device bs=4k count=1 oflag=direct"
# A port that waits can be disabled.
must on target "rdma link delete $rdma_link"
must wait_until target 30 "grep -q 'error -19' $port/error"
check "it is disabled while it waits" on target "echo 0 > $port/enable"
must on target "rdma link add $rdma_link type $rdma netdev $netdev"
check "it is enabled anew" wait_until target 30 "echo 1 > $port/enable"
check "the disk is connected once more" wait_until c1 60 "grep -q live $initiator/vol1/state"
disconnect c1 vol1
