#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: a port that listens at one address resumes by itself after the RDMA device of that address was removed and added again, and a disk reconnects.
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
check "a port without an RDMA device reports why it does not listen" wait_until target 30 "grep -q 'error -19' $port/error"
same "the port stays enabled" 1 "$(on target "cat $port/enable")"
must on target "rdma link add $rdma_link type $rdma netdev $netdev"
check "the port listens again" wait_until target 30 "! grep -q . $port/error"
check "the disk is connected again" wait_until c1 60 "grep -q live $initiator/vol1/state"
check "the disk can be written again" on c1 "dd if=/dev/zero of=$device bs=4k count=1 oflag=direct"
# A waiting port can be disabled.
must on target "rdma link delete $rdma_link"
must wait_until target 30 "grep -q 'error -19' $port/error"
check "a waiting port can be disabled" on target "echo 0 > $port/enable"
must on target "rdma link add $rdma_link type $rdma netdev $netdev"
check "the disabled port can be enabled again" wait_until target 30 "echo 1 > $port/enable"
check "the disk is connected again after the port was enabled" wait_until c1 60 "grep -q live $initiator/vol1/state"
disconnect c1 vol1
