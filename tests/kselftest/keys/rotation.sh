#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: the keys of a host and of a target change under writes by two paths, which are lost and proven anew by the new keys, and no request sees it.
# turn: 17
# takes: 40
# guests: target c1
# skips: siw
# waits: yes
# timeout: 900

. "${0%/*}/../lib/lib.sh"
. "${0%/*}/../lib/multi.sh"

[ "$rdma" != siw ] || skip "TCP notices a silent peer only when a request is not answered in time"
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
check "two paths, each proven" disk_is c1 vol1 live
ON_SECONDS=800 spawn writers c1 "exec hcablk-versions write $device 16 > /tmp/versions"

# lose CARD PATH: the path is lost, and comes back
lose() {
	cut "$1"
	check "$3: path $2 is lost, and the disk goes on" disk_is c1 vol1 degraded
	mend "$1"
	check "$3: it is proven anew" disk_is c1 vol1 live
}

must on c1 'hcablk key generate host --rotate'
key=$(on c1 'hcablk key show host')
must on target "echo '$key' | hcablk key add host $id && hcablk key apply"
same "the target takes two keys of the host" 2 "$(on target "cat $hosts/$id/keys")"
must on c1 'hcablk key apply'
must on target "hcablk key retire host $id && hcablk key apply"
same "the old one is retired" 1 "$(on target "cat $hosts/$id/keys")"
lose path2 1 "by the new key of the host"

must on target 'hcablk key generate target --rotate && hcablk key apply'
same "the target has two keys" 2 "$(on target "cat $target/keys")"
key=$(on target 'hcablk key show target')
must on c1 "echo '$key' | hcablk key add target default && hcablk key apply"
must on target 'hcablk key retire target && hcablk key apply'
same "its old one is retired" 1 "$(on target "cat $target/keys")"
# Sealed by the keys of sessions that live, whatever has become of those by which they began.
must on target 'dmsetup suspend --nolockfs gate'
pairs=$(queue_pairs c1)
check "a queue pair is made for one that has timed out" wait_until c1 60 "[ \$(rdma resource show qp | grep -vc 'type GSI') -gt $pairs ]"
must on target 'dmsetup resume gate'
check "it comes in place of that" wait_log target 90 'replaced queue 0'
check "all paths are there" disk_is c1 vol1 live
lose path1 0 "by the new keys of both"
must on c1 'hcablk key retire target default && hcablk key apply'

must on c1 'touch /tmp/stop'
check "no write has failed" join writers
same "nobody saw an error" 0 "$(stat_of c1 $initiator/vol1 errors)"
check "the target has refused nobody" test -z "$(in_log target 'refused')"
versions=$(on c1 'cat /tmp/versions; rm /tmp/versions /tmp/stop')
disconnect c1 vol1
must on target 'hcablk target unexport vol1'
check "the drive has what was acknowledged" on target "echo '$versions' | hcablk-versions check /dev/mapper/gate"
must on target 'dmsetup remove gate'
