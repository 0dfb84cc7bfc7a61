#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: a path that does not reach the same export of the same volume never becomes live, reports why, and does not disturb the disk.
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

# path_says DISK NUMBER TEXT: waits until the path's error has this text
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
refuse "a path without an address cannot be enabled" on c1 "echo 1 > $initiator/vol1/paths/1/enable"
must on target 'hcablk target listen --id 2 --port 7745'
must on c1 "cd $initiator/vol1/paths/1 && echo $target_address > address && echo 7745 > port && echo 1 > enable"
check "another port of the target becomes a path" path_is c1 vol1 1 live
refuse "the address of an enabled path cannot be changed" on c1 "echo 10.77.0.9 > $initiator/vol1/paths/1/address"
refuse "the directory of an enabled path cannot be removed" on c1 "rmdir $initiator/vol1/paths/1"
check "enabling an enabled path changes nothing" on c1 "echo 1 > $initiator/vol1/paths/1/enable"

add_path c1 vol1 2 "$second"
check "a volume with another wwid is refused as a path" path_is c1 vol1 2 refused
like "the path's error has the reason" "not the one that was connected before" "$(on c1 "cat $initiator/vol1/paths/2/error")"
remove_path vol1 2
must on c2 "hcablk target unexport vol1 && hcablk target export vol1 /dev/ram0 --insecure --wwid $same_wwid --allow $(host_id c1)"
add_path c1 vol1 2 "$second"
check "a volume with the same wwid at another target is refused" path_says vol1 2 "another target or export"
same "the path to the other target is not live" waiting "$(on c1 "cat $initiator/vol1/paths/2/state" | sed s/connecting/waiting/)"
same "the other target got no write" 0 "$(stats_of c2 $target/volumes/vol1 writes)"
remove_path vol1 2
must on c2 "hcablk target unexport vol1 && hcablk target export vol1 /dev/ram0 --insecure --wwid $same_wwid"
add_path c1 vol1 2 "$second"
check "a target that does not allow this host is refused as a path" path_is c1 vol1 2 refused
remove_path vol1 2
add_path c1 vol1 2 10.77.0.250
# Attempts follow one another: the path may be waiting or connecting.
check "an attempt to connect an address without a host fails" wait_until c1 60 "[ -s $initiator/vol1/paths/2/error ]"
same "the path to that address is not live" waiting "$(on c1 "cat $initiator/vol1/paths/2/state" | sed s/connecting/waiting/)"
same "the disk is degraded then" degraded "$(on c1 "cat $initiator/vol1/state")"
check "the degraded disk works" fio c1 --name=w --filename="$device" --rw=randwrite --bs=4k --size=1m --verify=crc32c --iodepth=8
remove_path vol1 2
same "without that path the disk is live" live "$(on c1 "cat $initiator/vol1/state")"

# A path that is enabled before its disk: it connects when the disk does.
must on c1 "echo 0 > $initiator/vol1/enable"
same "a path of a disabled disk has the state new" new "$(on c1 "cat $initiator/vol1/paths/1/state")"
must on c1 "echo 10.77.0.250 > $initiator/vol1/address && echo $((2 * slow)) > $initiator/vol1/connect_timeout && echo 1 > $initiator/vol1/enable"
must on c1 'ip neigh del 10.77.0.250 dev eth0'
# Since attempts follow one another closely, the neighbour is hardly ever seen as FAILED.
check "the first path is tried at its own address" wait_until c1 30 'ip neigh show 10.77.0.250 | grep -qE "INCOMPLETE|FAILED"'
check "a disk connects over the path that works" path_is c1 vol1 1 live
same "the disk is degraded without its first path" degraded "$(on c1 "cat $initiator/vol1/state")"
# The first path has no directory: only tracepoints report its state.
tracing=/sys/kernel/tracing
refusals() {
	wait_until c1 60 "[ \$(grep -c 'path=0 state=refused' $tracing/trace) = $1 ]"
}
must on c1 "echo > $tracing/trace && echo 1 > $tracing/events/hcablk/hcablk_path/enable"
must on c2 'ip address add 10.77.0.250/32 dev eth0'
check "the first path is given up when its target does not allow this host" refusals 1
must on c1 "echo 1 > $initiator/vol1/enable"
check "the first path is tried again when the disk is enabled again" refusals 2
must on c1 "echo 0 > $tracing/events/hcablk/hcablk_path/enable"
must on c2 'ip address del 10.77.0.250/32 dev eth0'
must on c1 "echo 0 > $initiator/vol1/enable"
remove_path vol1 1
must on c1 "rmdir $initiator/vol1"

must on target "cd $target/volumes/vol2 && echo 0 > enable && echo > wwid && echo 0 > keep_reservations && echo 1 > enable"
connect c1 vol2 --ctrl-loss-tmo 600
silent "the volume has no wwid" on c1 "cat $initiator/vol2/wwid"
add_path c1 vol2 1 $target_address
check "a second path of a volume without a wwid is refused" path_is c1 vol2 1 refused
like "the second path's error has the reason" "without a wwid" "$(on c1 "cat $initiator/vol2/paths/1/error")"
remove_path vol2 1
disconnect c1 vol2
must on c2 'hcablk target unexport vol1 && hcablk target unlisten --all'
