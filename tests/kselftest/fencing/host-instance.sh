#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: a host that was started again comes behind what is left of it, and of two machines with one id the later one stays.
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
# Else the target may not have read the data from its memory when it goes.
must drive_holds write
must vm kill c1
join held
must vm start c1
ON_SECONDS=150 spawn again c1 "exec hcablk connect $target_address vol1 --connect-timeout 120"
check "the host was started again: the target ends its old session" \
	wait_log target 60 "vol1: session .* of $victim ended: "
must wait_until c1 30 "[ \$(cat $initiator/vol1/state) = connecting ]"
# Everything that hinders it but the drive has passed when the connection manager has forgotten the old queue pairs.
must wait_until target 60 "[ \$(rdma resource show qp | grep -v 'type GSI' | grep -c 'state RTS') = 0 ]"
refuse "while the drive has a write of it, it is not let in" becomes_true c1 4 "[ \$(cat $initiator/vol1/state) = live ]"
same "there is the old session only" 1 "$(on target "wc -l < $target/volumes/vol1/clients")"
must on target 'dmsetup resume gate'
check "when the drive has finished it, it is" join again
check "what it writes now" on c1 "tr '\0' B < /dev/zero | dd of=/dev/hcablk0 bs=64k count=1 iflag=fullblock oflag=direct conv=notrunc status=none"
same "comes behind what it had written" "65536" "$(on target "dd if=/dev/mapper/door bs=64k count=1 iflag=direct 2> /dev/null | tr -dc B | wc -c")"
disconnect c1 vol1

# Two machines with one id.
connect c1 vol1 --ctrl-loss-tmo -1
connect c2 vol1 --host-id "$victim"
pass "a second machine with the same id is let in"
check "the first one loses its disk" state_is c1 vol1 failed
like "why is told" "later instance of this host" "$(on c1 "cat $initiator/vol1/error")"
must on c1 'hcablk disconnect vol1'
like "it does not come in again" "later instance of this host" "$(on c1 "hcablk connect $target_address vol1" 2>&1)"
check "the second keeps its own" on c2 "dd if=$device of=/dev/null bs=4k count=4 iflag=direct && [ \$(cat $initiator/vol1/state) = live ]"
must wait_until c1 30 'hcablk disconnect --if-exists --all && rmmod hcablk'
connect c1 vol1
pass "the first one is let in when its module was loaded again: it is a later instance"
check "and the second one loses its disk" wait_until c2 60 "[ \$(cat $initiator/vol1/state) = failed ]"
must on c2 'hcablk disconnect vol1'

# Several disks of one instance are one host's.
connect c1 vol1 --name second
check "a second disk of the same host takes nothing from the first" on c1 "[ \$(cat $initiator/vol1/state) = live ]"
disconnect c1 second
disconnect c1 vol1
must on target 'hcablk target unexport vol1 && dmsetup remove door && dmsetup remove gate'
