#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: an attempt to connect a path that waits for a silent target ends at once when the path is taken out of use, when the RDMA device of its last session goes, and when its disk is disconnected, for which the module's removal waits; another path's attempt goes on.
# turn: 15
# takes: 60
# guests: target c1
# skips: siw
# waits: yes

. "${0%/*}/../lib/lib.sh"
. "${0%/*}/../lib/multi.sh"

[ "$rdma" != siw ] || skip "soft-iWARP connects TCP in a call that nothing ends"
two_cards 1 target c1
export_volume vol1 "$drive" --wwid=6f0c2b62-5f5e-4c0e-9d57-0b8f3e9b0a45 c1

# seconds COMMAND…: how many it takes on c1, into $took
seconds() {
	local begun
	begun=$(now_ms)
	must on c1 "$@"
	took=$((($(now_ms) - begun) / 1000))
}

# again [ADDRESS]: c1's second path is taken out of use and back, now with this address
again() {
	must on c1 "cd $initiator/vol1/paths/1 && echo 0 > enable && echo ${1:-10.77.2.1} > address && echo 1 > enable"
}

# lose: it is cut, and an attempt to connect it waits
lose() {
	cut path2
	must wait_until c1 60 "grep -E 'waiting|connecting' $initiator/vol1/paths/1/state"
	# At once, though its session was not there for long.
	again
	must path_is c1 vol1 1 connecting
}

# stable: paths that are lost after this are connected again at once
stable() {
	local live
	live=$(on c1 'cut -d . -f 1 /proc/uptime')
	must wait_until c1 30 "[ \$(cut -d . -f 1 /proc/uptime) -gt $((live + 11)) ]"
}

# An attempt may take 300 s, and waits for the target's answer for 30 s at least.
target_address=10.77.1.1
connect c1 vol1 --ctrl-loss-tmo 600 --reconnect-delay 60 --connect-timeout 600 --keep-alive-tmo 2 --queues 1
add_path c1 vol1 1 10.77.2.1
check "two paths" disk_is c1 vol1 live
lose
again 10.77.1.1
check "a path that is taken out of use, and back with another address, is connected at once" \
	wait_until c1 15 "[ \$(cat $initiator/vol1/paths/1/state) = live ]"

mend path2
again
check "two ways again" path_is c1 vol1 1 live
stable
cut path2
# Nobody tells the address of the target's card.
must on c1 'ip neigh flush dev path2'
must path_is c1 vol1 1 connecting
seconds "rdma link delete ${rdma}2"
within "an RDMA device goes though an attempt waits" "$took" 15

mend path2
must on c1 "rdma link add ${rdma}2 type $rdma netdev path2"
again
check "the path gets another one" path_is c1 vol1 1 live
lose
disconnect c1 vol1
mend path2

# The last attempts begin before the disk is to go, and end after that.
connect c1 vol1 --ctrl-loss-tmo 12 --reconnect-delay 60 --connect-timeout 600 --keep-alive-tmo 2 --queues 1
add_path c1 vol1 1 10.77.2.1
check "two paths for another time" disk_is c1 vol1 live
stable
cut path1
cut path2
must on c1 'ip neigh flush dev path1 && ip neigh flush dev path2'
must disk_is c1 vol1 queueing
lost=$(on c1 'cut -d . -f 1 /proc/uptime')
must path_is c1 vol1 1 connecting
must wait_until c1 30 "[ \$(cut -d . -f 1 /proc/uptime) -gt $((lost + 13)) ]"
must on c1 "echo 0 > $initiator/vol1/paths/1/enable"
mend path1
check "without one of its paths the disk waits for the last attempt of the other one" disk_is c1 vol1 live
mend path2
again
must path_is c1 vol1 1 live
lose
disconnect c1 vol1
seconds 'rmmod hcablk'
within "the module goes though an attempt waits" "$took" 15
