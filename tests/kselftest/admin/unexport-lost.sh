#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: unexport names the hosts that have lost their connections and may wait for the volume, and no host that has disconnected.
# turn: 10
# takes: 20
# guests: target c1

. "${0%/*}/../lib/lib.sh"

lost="$target/volumes/vol1/lost"

export_volume vol1 "$drive" c1
must on target "hcablk target name-host $(host_id c1) client1"
connect c1 vol1 --keep-alive-tmo 1 --ctrl-loss-tmo 600
disconnect c1 vol1
must wait_until target 30 "[ -z \"\$(cat $target/volumes/vol1/clients)\" ]"
silent "a disk that was disconnected is not lost" on target "cat $lost"
connect c1 vol1 --keep-alive-tmo 1 --ctrl-loss-tmo 600
silent "a connected disk is not lost" on target "cat $lost"

must vm link-down target 0
check "the target knows that the disk is lost" wait_until target 60 "grep -q '^$(host_id c1) [0-9a-f]\{16\}$' $lost"
check "the client has lost the disk" wait_until c1 60 "grep -q queueing $initiator/vol1/state"
said=$(on target 'hcablk target unexport vol1 2>&1')
like "the volume is ended, and the command names the host that may wait for it" \
	"may wait for vol1 .*: $(host_id c1) \(client1\)" "${said//$'\n'/ }"
must vm link-up target 0
export_volume vol1 "$drive" c1
check "the disk is live when the volume is exported again" wait_until c1 60 "grep -q live $initiator/vol1/state"
silent "a disk that has connected again is not lost" on target "cat $lost"
disconnect c1 vol1
must wait_until target 30 "[ -z \"\$(cat $target/volumes/vol1/clients)\" ]"
said=$(on target 'hcablk target unexport vol1 2>&1')
same "the command says nothing about a host that has disconnected" "vol1 is no longer exported" "$said"
must on target 'rm /etc/hcablk/hcablk.toml'
