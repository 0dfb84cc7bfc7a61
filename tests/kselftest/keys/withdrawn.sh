#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: a key that is withdrawn while a request that it has proven waits for the drive begins no session.
# turn: 19
# takes: 10
# guests: target c1
# waits: yes

. "${0%/*}/../lib/lib.sh"

use_keys c1
id=$(host_id c1)
must on target "modprobe dm_mod && echo '0 65536 linear $drive 0' | dmsetup create gate && dmsetup mknodes &&
	echo '0 65536 linear /dev/mapper/gate 0' | dmsetup create door && dmsetup mknodes"
export_volume vol1 /dev/mapper/door --wwid=6f0c2b62-5f5e-4c0e-9d57-0b8f3e9b0a46 c1
connect c1 vol1

# waiting: the drive holds a write of a session that is gone, and the next one, which has proven itself, waits for that.
waiting() {
	must on target 'dmsetup suspend --nolockfs gate'
	spawn held c1 "dd if=/dev/zero of=$device bs=64k count=1 oflag=direct 2> /dev/null"
	must drive_holds write
	must on c1 'hcablk disconnect --force vol1'
	join held
	spawn again c1 "hcablk connect $target_address vol1 --ctrl-loss-tmo 0 --connect-timeout 60 > /tmp/again 2>&1"
	# That of a hello is there for a moment only.
	must wait_until target 30 "rdma resource show cm_id | grep -q 'state CONNECT' && sleep 1 && rdma resource show cm_id | grep -q 'state CONNECT'"
}

waiting
must on target 'dmsetup resume gate'
check "a request whose key is still set goes on when the drive has done its work" join again

must wait_until c1 30 "[ -b $device ]"
waiting
must on target "echo > $target/volumes/vol1/hosts/$id/key"
must on target 'dmsetup resume gate'
refuse "one whose key was withdrawn meanwhile does not" join again
like "it says why" "does not accept the proof" "$(on c1 'cat /tmp/again')"
like "the target's log, too" "the key of its proof was withdrawn" "$(in_log target "refused $id")"
silent "no session has begun" on target "cat $target/volumes/vol1/clients"

must on target 'hcablk key apply' && must on c1 'hcablk disconnect --if-exists vol1'
connect c1 vol1
pass "when the key is set again the host connects"
disconnect c1 vol1
must on target 'hcablk target unexport vol1 && dmsetup remove door && dmsetup remove gate'
