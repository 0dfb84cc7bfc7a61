#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: only the export that a lost path was of has it fenced: another machine never becomes a path, a restarted target by any one address.
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
# silence CARD, unsilence CARD: the target says nothing by it any more, and again; the other machine is still heard
silence() {
	netem target "$1" loss 100%
}
unsilence() {
	netem target "$1"
}
# sessions GUEST WORD: how often its target has said that of a session
sessions() {
	on "$1" "dmesg | grep -c 'vol1: session .* $2'"
}
# another_attempt: the other machine has granted a session since, which ended
another_attempt() {
	local begun
	begun=$(sessions c2 begun)
	wait_until c2 60 "[ \$(dmesg | grep -c 'vol1: session .* begun') -gt $begun ]"
}
check "while a path is live the other machine is none" another_attempt
silence path1
silence path2
check "all paths are lost" disk_is c1 vol1 queueing
check "then it is tried" another_attempt
check "and once more" another_attempt
same "but is no path" queueing "$(on c1 "cat $initiator/vol1/state")"
spawn write c1 "dd if=/dev/urandom of=$device bs=64k count=16 oflag=direct"

# What the target has forgotten came to its end before: one of its addresses shows that for all of them.
must on target 'hcablk target unexport --force vol1'
export_volume vol1 /dev/ram0 --wwid=$wwid c1
unsilence path2
check "the restarted target is one by its second address" path_is c1 vol1 1 live
check "the disk goes on" join write
same "the first one is still lost" degraded "$(on c1 "cat $initiator/vol1/state")"
unsilence path1
check "it comes back" wait_until c1 60 "[ \$(ls $initiator/vol1/paths | wc -l) = 2 ] && dmesg | grep -q 'vol1: connected again'"
must on c1 "echo 0 > $initiator/vol1/paths/2/enable"
check "then all are there" disk_is c1 vol1 live

silence path1
silence path2
must disk_is c1 vol1 queueing
must on target 'hcablk target unexport --force vol1'
export_volume vol1 /dev/ram0 --wwid=$wwid c1
unsilence path1
unsilence path2
check "a target restarts while all are lost: they come back together" disk_is c1 vol1 live
check "and work" fio c1 --name=w --filename="$device" --rw=randwrite --bs=4k --size=1m --verify=crc32c --iodepth=8
same "nobody saw an error" 0 "$(stat_of c1 $initiator/vol1 errors)"
same "nothing was written at the other machine" 0 "$(stats_of c2 $target/volumes/vol1 writes)"
same "nor read" 0 "$(stats_of c2 $target/volumes/vol1 reads)"

# The only path that was ever live loses its device: that is not held until another one has been.
must on c1 "echo 0 > $initiator/vol1/paths/1/enable"
must on c1 "echo 1 > $initiator/vol1/paths/2/enable"
check "the disk waits for a path to the other machine" path_is c1 vol1 2 waiting
check "the RDMA device of the last live path goes" on c1 "timeout 60 rdma link delete ${rdma}1"
check "the disk stays" disk_is c1 vol1 queueing
must on c1 "rmdir $initiator/vol1/paths/1"
add_path c1 vol1 3 10.77.2.1
check "another path carries it on" path_is c1 vol1 3 live
check "with all that it has" fio c1 --name=r --filename="$device" --rw=randread --bs=4k --size=1m
must on c1 "echo 1 > $initiator/vol1/force_disconnect"
must on c2 'hcablk target unexport vol1 && hcablk target unlisten --all'
