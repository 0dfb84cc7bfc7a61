#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: a key that is withdrawn while a request proven with it waits for the drive begins no session.
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

# waiting: lets the drive hold a write of an ended session, and a proven connection request wait for that.
waiting() {
	must on target 'dmsetup suspend --nolockfs gate'
	spawn held c1 "dd if=/dev/zero of=$device bs=64k count=1 oflag=direct 2> /dev/null"
	must drive_holds write
	must on c1 'hcablk disconnect --force vol1'
	join held
	spawn again c1 "hcablk connect $target_address vol1 --ctrl-loss-tmo 0 --connect-timeout 60 > /tmp/again 2>&1"
	# The connection of a hello lasts only a moment.
	must wait_until target 30 "rdma resource show cm_id | grep -q 'state CONNECT' && sleep 1 && rdma resource show cm_id | grep -q 'state CONNECT'"
}

waiting
must on target 'dmsetup resume gate'
check "a waiting request whose key is still set connects when the drive has finished" join again

must wait_until c1 30 "[ -b $device ]"
waiting
must on target "echo > $target/volumes/vol1/hosts/$id/key"
must on target 'dmsetup resume gate'
refuse "a waiting request whose key was withdrawn is refused" join again
like "the command reports the refused proof" "does not accept the proof" "$(on c1 'cat /tmp/again')"
like "the target's log has the withdrawn key as the reason" "the key of its proof was withdrawn" "$(in_log target "refused $id")"
silent "the volume has no session" on target "cat $target/volumes/vol1/clients"

must on target 'hcablk key apply' && must on c1 'hcablk disconnect --if-exists vol1'
connect c1 vol1
pass "the host connects when its key is set again"
disconnect c1 vol1
must on target 'hcablk target unexport vol1 && dmsetup remove door && dmsetup remove gate'
