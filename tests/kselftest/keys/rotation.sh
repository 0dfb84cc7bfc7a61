#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: the keys of a host and of a target are rotated under writes over two paths; lost paths prove themselves with the new keys, and no request fails.
# turn: 17
# takes: 40
# guests: target c1
# skips: siw
# waits: yes
# timeout: 900

. "${0%/*}/../lib/lib.sh"
. "${0%/*}/../lib/multi.sh"

[ "$rdma" != siw ] || skip "TCP notices a silent peer only when a request gets no response in time"
two_cards 1 target c1
target_address=10.77.1.1
use_keys c1
id=$(host_id c1)
hosts=$target/volumes/vol1/hosts
must on target "dd if=/dev/zero of=$drive bs=1M count=32 conv=fsync"
must on target "modprobe dm_mod && echo '0 65536 linear $drive 0' | dmsetup create gate && dmsetup mknodes"
export_volume vol1 /dev/mapper/gate --wwid=6f0c2b62-5f5e-4c0e-9d57-0b8f3e9b0a45 c1
connect c1 vol1 --ctrl-loss-tmo 600 --queues 1 --io-timeout $((6 * slow)) --connect-timeout 120
add_path c1 vol1 1 10.77.2.1
check "the disk has two paths with proofs" disk_is c1 vol1 live
ON_SECONDS=800 spawn writers c1 "exec hcablk-versions write $device 16 > /tmp/versions"

# lose CARD PATH "DESCRIPTION": cuts the path, and waits until it is back
lose() {
	cut "$1"
	check "$3: path $2 is lost, and the disk is degraded" disk_is c1 vol1 degraded
	mend "$1"
	check "$3: the path is live again with a new proof" disk_is c1 vol1 live
}

must on c1 'hcablk key generate host --rotate'
key=$(on c1 'hcablk key show host')
must on target "echo '$key' | hcablk key add host $id && hcablk key apply"
same "the target accepts two keys of the host" 2 "$(on target "cat $hosts/$id/keys")"
must on c1 'hcablk key apply'
must on target "hcablk key retire host $id && hcablk key apply"
same "the host's old key is retired" 1 "$(on target "cat $hosts/$id/keys")"
lose path2 1 "with the new key of the host"

must on target 'hcablk key generate target --rotate && hcablk key apply'
same "the target has two keys" 2 "$(on target "cat $target/keys")"
key=$(on target 'hcablk key show target')
must on c1 "echo '$key' | hcablk key add target default && hcablk key apply"
must on target 'hcablk key retire target && hcablk key apply'
same "the target's old key is retired" 1 "$(on target "cat $target/keys")"
# The key of a live session seals the messages, regardless of the keys with which the session began.
must on target 'dmsetup suspend --nolockfs gate'
pairs=$(queue_pairs c1)
check "a queue pair that timed out gets a replacement" wait_until c1 60 "[ \$(rdma resource show qp | grep -vc 'type GSI') -gt $pairs ]"
must on target 'dmsetup resume gate'
check "the replacement is accepted in the old session" wait_log target 90 'replaced queue 0'
check "the disk is live over both paths" disk_is c1 vol1 live
lose path1 0 "with the new keys of both"
must on c1 'hcablk key retire target default && hcablk key apply'

must on c1 'touch /tmp/stop'
check "no write has failed" join writers
same "the client has no errors" 0 "$(stat_of c1 $initiator/vol1 errors)"
check "the target has refused no connection" test -z "$(in_log target 'refused')"
versions=$(on c1 'cat /tmp/versions; rm /tmp/versions /tmp/stop')
disconnect c1 vol1
must on target 'hcablk target unexport vol1'
check "the drive has the acknowledged data" on target "echo '$versions' | hcablk-versions check /dev/mapper/gate"
must on target 'dmsetup remove gate'
