#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: only the export that a lost path belonged to can fence it: another machine never becomes a path, a restarted target becomes one at any one address.
# turn: 21
# takes: 60
# waits: yes

. "${0%/*}/../lib/lib.sh"
. "${0%/*}/../lib/multi.sh"

wwid=6f0c2b62-5f5e-4c0e-9d57-0b8f3e9b0a04
two_cards 1 target c1 c2
target_address=10.77.1.1
for guest in target c2; do
	must on $guest 'modprobe brd rd_nr=1 rd_size=65536'
done
export_volume vol1 /dev/ram0 --wwid=$wwid c1
must on c2 "hcablk target listen --id 1 && hcablk target export vol1 /dev/ram0 --insecure --wwid $wwid --allow $(host_id c1)"
connect c1 vol1 --ctrl-loss-tmo 600 --queues 2
add_path c1 vol1 1 10.77.2.1
must path_is c1 vol1 1 live

add_path c1 vol1 2 10.77.2.3
# silence CARD, unsilence CARD: drops what the target sends from the card, and ends that; the other machine can still send
silence() {
	netem target "$1" loss 100%
}
unsilence() {
	netem target "$1"
}
# attaches: prints how often the other machine's target has attached the volume
attaches() {
	on c2 "dmesg | grep -c 'vol1: disk .* attached'"
}
# another_attempt: waits until the other machine has granted one more session, which ended
another_attempt() {
	local attached
	attached=$(attaches)
	wait_until c2 60 "[ \$(dmesg | grep -c 'vol1: disk .* attached') -gt $attached ]"
}
check "the other machine is asked while a path is live" another_attempt
silence path1
silence path2
check "all paths are lost" disk_is c1 vol1 queueing
check "the other machine is asked while no path is live" another_attempt
check "the other machine is asked again" another_attempt
same "the other machine is no path" queueing "$(on c1 "cat $initiator/vol1/state")"
spawn write c1 "dd if=/dev/urandom of=$device bs=64k count=16 oflag=direct"

# The requests that a restarted target has forgotten have ended: a session at one of its addresses proves that for all addresses.
must on target 'hcablk target unexport --force vol1'
export_volume vol1 /dev/ram0 --wwid=$wwid c1
unsilence path2
check "the restarted target's second address becomes a path" path_is c1 vol1 1 live
check "the waiting write succeeds" join write
same "the first path is still lost" degraded "$(on c1 "cat $initiator/vol1/state")"
unsilence path1
check "the first path is connected again" wait_until c1 60 "[ \$(ls $initiator/vol1/paths | wc -l) = 2 ] && dmesg | grep -q 'vol1: connection restored'"
must on c1 "echo 0 > $initiator/vol1/paths/2/enable"
check "the disk has all its paths" disk_is c1 vol1 live

silence path1
silence path2
must disk_is c1 vol1 queueing
must on target 'hcablk target unexport --force vol1'
export_volume vol1 /dev/ram0 --wwid=$wwid c1
unsilence path1
unsilence path2
check "all paths come back after the target restarted" disk_is c1 vol1 live
check "fio verifies the disk on the restarted target" fio c1 --name=w --filename="$device" --rw=randwrite --bs=4k --size=1m --verify=crc32c --iodepth=8
same "the client has no errors" 0 "$(stat_of c1 $initiator/vol1 errors)"
same "the other machine got no write" 0 "$(stats_of c2 $target/volumes/vol1 writes)"
same "the other machine got no read" 0 "$(stats_of c2 $target/volumes/vol1 reads)"

# The only path that was ever live loses its device: the disk must not hold the device until another path was live.
must on c1 "echo 0 > $initiator/vol1/paths/1/enable"
must on c1 "echo 1 > $initiator/vol1/paths/2/enable"
check "the disk waits for a path to the other machine" path_is c1 vol1 2 waiting
check "the RDMA device of the last live path can be removed" on c1 "timeout 60 rdma link delete ${rdma}1"
check "the disk waits without that device" disk_is c1 vol1 queueing
must on c1 "rmdir $initiator/vol1/paths/1"
add_path c1 vol1 3 10.77.2.1
check "a new path becomes live" path_is c1 vol1 3 live
check "the disk is read over the new path" fio c1 --name=r --filename="$device" --rw=randread --bs=4k --size=1m
must on c1 "echo 1 > $initiator/vol1/force_disconnect"
must on c2 'hcablk target unexport vol1 && hcablk target unlisten --all'
