#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: what is no path to the same export of the same volume never becomes one, says why, and does the disk no harm.
# turn: 19
# takes: 20
# waits: yes

. "${0%/*}/../lib/lib.sh"
. "${0%/*}/../lib/multi.sh"

same_wwid=6f0c2b62-5f5e-4c0e-9d57-0b8f3e9b0a01
other_wwid=6f0c2b62-5f5e-4c0e-9d57-0b8f3e9b0a02
must on target 'modprobe brd rd_nr=2 rd_size=65536'
must on c2 'modprobe brd rd_nr=2 rd_size=65536'
export_volume vol1 /dev/ram0 --wwid=$same_wwid c1
export_volume vol2 /dev/ram1 c1
must on c2 "hcablk target listen --id 1 && hcablk target export vol1 /dev/ram0 --insecure --wwid $other_wwid --allow $(host_id c1)"
second=$(on c2 "ip -o -4 address show dev eth0 | sed 's/.* \\([0-9.]*\\)\\/.*/\\1/'")

# path_says DISK NUMBER TEXT: why it is not live
path_says() {
	wait_until c1 30 "grep -q '$3' $initiator/$1/paths/$2/error"
}
remove_path() {
	must on c1 "echo 0 > $initiator/$1/paths/$2/enable && rmdir $initiator/$1/paths/$2"
}
connect c1 vol1 --ctrl-loss-tmo 600 --queues 2
for name in 0 16 one -1 ''; do
	refuse "a path called \"$name\" is refused" on c1 "mkdir $initiator/vol1/paths/$name"
done
must on c1 "mkdir $initiator/vol1/paths/1"
refuse "a path without an address is not used" on c1 "echo 1 > $initiator/vol1/paths/1/enable"
must on target 'hcablk target listen --id 2 --port 7745'
must on c1 "cd $initiator/vol1/paths/1 && echo $target_address > address && echo 7745 > port && echo 1 > enable"
check "another port of the target is a path" path_is c1 vol1 1 live
refuse "its address cannot be changed while it is used" on c1 "echo 10.77.0.9 > $initiator/vol1/paths/1/address"
refuse "nor can its directory be removed" on c1 "rmdir $initiator/vol1/paths/1"
check "to use it again changes nothing" on c1 "echo 1 > $initiator/vol1/paths/1/enable"

add_path c1 vol1 2 "$second"
check "a volume with another wwid is no path" path_is c1 vol1 2 refused
like "it says why" "not the one that was connected before" "$(on c1 "cat $initiator/vol1/paths/2/error")"
remove_path vol1 2
must on c2 "hcablk target unexport vol1 && hcablk target export vol1 /dev/ram0 --insecure --wwid $same_wwid --allow $(host_id c1)"
add_path c1 vol1 2 "$second"
check "the same wwid at another target: it says why" path_says vol1 2 "another target or export"
same "it is no path" waiting "$(on c1 "cat $initiator/vol1/paths/2/state" | sed s/connecting/waiting/)"
same "nothing has gone there" 0 "$(stats_of c2 $target/volumes/vol1 writes)"
remove_path vol1 2
must on c2 "hcablk target unexport vol1 && hcablk target export vol1 /dev/ram0 --insecure --wwid $same_wwid"
add_path c1 vol1 2 "$second"
check "a target that does not allow this host is no path" path_is c1 vol1 2 refused
remove_path vol1 2
add_path c1 vol1 2 10.77.0.250
# An attempt follows the other.
check "where nobody answers an attempt fails" wait_until c1 60 "[ -s $initiator/vol1/paths/2/error ]"
same "and there is no path" waiting "$(on c1 "cat $initiator/vol1/paths/2/state" | sed s/connecting/waiting/)"
same "the disk is degraded then" degraded "$(on c1 "cat $initiator/vol1/state")"
check "but works" fio c1 --name=w --filename="$device" --rw=randwrite --bs=4k --size=1m --verify=crc32c --iodepth=8
remove_path vol1 2
same "without that path it is whole" live "$(on c1 "cat $initiator/vol1/state")"

# What is enabled before the disk comes with it.
must on c1 "echo 0 > $initiator/vol1/enable"
same "a path of a disk that is not there is new" new "$(on c1 "cat $initiator/vol1/paths/1/state")"
must on c1 "echo 10.77.0.250 > $initiator/vol1/address && echo $((2 * slow)) > $initiator/vol1/connect_timeout && echo 1 > $initiator/vol1/enable"
must on c1 'ip neigh del 10.77.0.250 dev eth0'
# While attempts follow one another somebody asks for it nearly all the time: it is hardly ever seen as FAILED.
check "the other is tried at its own address" wait_until c1 30 'ip neigh show 10.77.0.250 | grep -qE "INCOMPLETE|FAILED"'
check "a disk begins with the path that can be had" path_is c1 vol1 1 live
same "without the other it is degraded" degraded "$(on c1 "cat $initiator/vol1/state")"
# The first path has no directory of its own.
tracing=/sys/kernel/tracing
refusals() {
	wait_until c1 60 "[ \$(grep -c 'path=0 state=refused' $tracing/trace) = $1 ]"
}
must on c1 "echo > $tracing/trace && echo 1 > $tracing/events/hcablk/hcablk_path/enable"
must on c2 'ip address add 10.77.0.250/32 dev eth0'
check "a target that does not allow this host comes to be at the first path's address: that is given up" refusals 1
must on c1 "echo 1 > $initiator/vol1/enable"
check "it is tried again when the disk is enabled" refusals 2
must on c1 "echo 0 > $tracing/events/hcablk/hcablk_path/enable"
must on c2 'ip address del 10.77.0.250/32 dev eth0'
must on c1 "echo 0 > $initiator/vol1/enable"
remove_path vol1 1
must on c1 "rmdir $initiator/vol1"

must on target "cd $target/volumes/vol2 && echo 0 > enable && echo > wwid && echo 0 > keep_reservations && echo 1 > enable"
connect c1 vol2 --ctrl-loss-tmo 600
silent "a volume has no wwid" on c1 "cat $initiator/vol2/wwid"
add_path c1 vol2 1 $target_address
check "then it has one path" path_is c1 vol2 1 refused
like "it says why" "without a wwid" "$(on c1 "cat $initiator/vol2/paths/1/error")"
remove_path vol2 1
disconnect c1 vol2
must on c2 'hcablk target unexport vol1 && hcablk target unlisten --all'
