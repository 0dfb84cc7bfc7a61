#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: a restarted host is served only after the requests of its old session have ended, and of two machines with one id the later one keeps its disk.
# tier: heart
# turn: 11
# takes: 30
# waits: yes
# timeout: 480

. "${0%/*}/../lib/lib.sh"

state_is() {
	wait_until "$1" 60 "[ \$(cat $initiator/$2/state) = $3 ]"
}
victim=$(host_id c1)

must on target "modprobe dm_mod && printf '0 65536 linear $drive 0\n' | dmsetup create gate && dmsetup mknodes &&
	echo '0 65536 linear /dev/mapper/gate 0' | dmsetup create door && dmsetup mknodes"
export_volume vol1 /dev/mapper/door c1
connect c1 vol1 --queues 1
must on target 'dmsetup suspend --nolockfs gate'
spawn held c1 "tr '\0' A < /dev/zero | dd of=$device bs=64k count=1 iflag=fullblock oflag=direct conv=notrunc status=none"
# The target must have read the data from the host's memory before the host is killed.
must drive_holds write
must vm kill c1
join held
must vm start c1
ON_SECONDS=150 spawn again c1 "exec hcablk connect $target_address vol1 --connect-timeout 120"
check "the target ends the old session of the restarted host" \
	wait_log target 60 "vol1: session .* of $victim ended: "
must wait_until c1 30 "[ \$(cat $initiator/vol1/state) = connecting ]"
# When the old queue pairs no longer work, only the drive still delays the new session, which has its admin queue pair.
must wait_until target 60 "[ \$(rdma resource show qp | grep -v 'type GSI' | grep -c 'state RTS') = 1 ]"
refuse "the restarted host is not served while the drive has its old write" becomes_true c1 4 "[ \$(cat $initiator/vol1/state) = live ]"
same "the target has only the old session" 1 "$(on target "wc -l < $target/volumes/vol1/clients")"
must on target 'dmsetup resume gate'
check "the restarted host is served when the drive has finished the write" join again
check "the restarted host writes" on c1 "tr '\0' B < /dev/zero | dd of=/dev/hcablk0 bs=64k count=1 iflag=fullblock oflag=direct conv=notrunc status=none"
same "the drive has the new write, not the old one" "65536" "$(on target "dd if=/dev/mapper/door bs=64k count=1 iflag=direct 2> /dev/null | tr -dc B | wc -c")"
disconnect c1 vol1

# Two machines with one id.
connect c1 vol1 --ctrl-loss-tmo -1
connect c2 vol1 --host-id "$victim"
pass "a second machine with the same id connects"
check "the first machine loses its disk" state_is c1 vol1 failed
like "the first machine's error has the reason" "later instance of this host" "$(on c1 "cat $initiator/vol1/error")"
must on c1 'hcablk disconnect vol1'
like "the first machine cannot connect again" "later instance of this host" "$(on c1 "hcablk connect $target_address vol1" 2>&1)"
check "the second machine keeps its disk" on c2 "dd if=$device of=/dev/null bs=4k count=4 iflag=direct && [ \$(cat $initiator/vol1/state) = live ]"
must wait_until c1 30 'hcablk disconnect --if-exists --all && rmmod hcablk'
connect c1 vol1
pass "the first machine connects as a later instance after its module was reloaded"
check "the second machine loses its disk" wait_until c2 60 "[ \$(cat $initiator/vol1/state) = failed ]"
must on c2 'hcablk disconnect vol1'

# Several disks of one host instance belong to one host.
connect c1 vol1 --name second
check "a second disk of a host does not end the first" on c1 "[ \$(cat $initiator/vol1/state) = live ]"
disconnect c1 second
disconnect c1 vol1
must on target 'hcablk target unexport vol1 && dmsetup remove door && dmsetup remove gate'
