#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: disabling or removing a volume, or forbidding a host, under I/O ends the sessions, and nothing hangs.
# turn: 6
# takes: 40
# waits: yes
# timeout: 480

. "${0%/*}/../lib/lib.sh"

# why_ended CLIENT: prints the reason that the target logged last for the end of a session of the client
why_ended() {
	on target "dmesg | sed -n 's/^.* vol1: session .* of $(host_id "$1") ended: //p' | tail -n 1"
}

share c1 c2
start_load one c1 "$device"
start_load two c2 "$device"
check "the volume is disabled under I/O" on target "echo 0 > $target/volumes/vol1/enable"
ends_within one 30000 "volume disabled, c1"
ends_within two 30000 "volume disabled, c2"
for guest in c1 c2; do
	check "$guest's disk is removed" wait_until $guest 30 "[ ! -e /sys/block/$disk ]"
	check "$guest disconnects" on $guest 'hcablk disconnect vol1'
done
silent "no session is left" on target "cat $target/volumes/vol1/clients"
for guest in c1 c2; do
	same "the target logs why $guest's session ended" "the volume is disabled" "$(why_ended $guest)"
done
same "no queue pair is left" 0 "$(queue_pairs target)"
check "the volume is enabled again" on target "echo 1 > $target/volumes/vol1/enable"

connect c1 vol1
connect c2 vol1
start_load three c1 "$device"
start_load four c2 "$device"
check "one host is forbidden under I/O" on target "hcablk target forbid vol1 $(host_id c1)"
ends_within three 30000 "host forbidden"
check "the other host's disk works" on c2 "dd if=$device of=/dev/null bs=4k count=4 iflag=direct"
same "the target logs why the forbidden host's session ended" "the host is not allowed any more" "$(why_ended c1)"
same "only the other host's session is left" "$(host_id c2)" "$(on target "cut -d' ' -f1 $target/volumes/vol1/clients")"

refuse "the command does not unexport a volume in use" on target 'hcablk target unexport vol1'
check "the command unexports a volume in use by force" on target 'hcablk target unexport --force vol1'
ends_within four 30000 "volume unexported"
check "the target unloads" on target 'hcablk target unlisten --all && rmmod hcablk_target hcablk_core'
for guest in c1 c2; do
	check "$guest unloads" wait_until $guest 30 'hcablk disconnect --if-exists vol1 && rmmod hcablk hcablk_core'
done
