#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: an attempt to connect a path to a silent target ends at once when the path is disabled, when the RDMA device of its last session is removed, and when its disk is disconnected, before the module can be removed; attempts of other paths continue.
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

# seconds COMMAND…: runs it on c1, and sets $took to the seconds that it takes
seconds() {
	local begun
	begun=$(now_ms)
	must on c1 "$@"
	took=$((($(now_ms) - begun) / 1000))
}

# again [ADDRESS]: disables c1's second path and enables it again, with this address
again() {
	must on c1 "cd $initiator/vol1/paths/1 && echo 0 > enable && echo ${1:-10.77.2.1} > address && echo 1 > enable"
}

# lose: cuts the second path, and waits until an attempt to connect it is under way
lose() {
	cut path2
	must wait_until c1 60 "grep -E 'waiting|connecting' $initiator/vol1/paths/1/state"
	# The path connects at once, though its last session was short.
	again
	must path_is c1 vol1 1 connecting
}

# stable: waits until a lost path would be connected again without a delay
stable() {
	local live
	live=$(on c1 'cut -d . -f 1 /proc/uptime')
	must wait_until c1 30 "[ \$(cut -d . -f 1 /proc/uptime) -gt $((live + 11)) ]"
}

# An attempt may take 300 s, and waits at least 30 s for the target's answer.
target_address=10.77.1.1
connect c1 vol1 --ctrl-loss-tmo 600 --reconnect-delay 60 --connect-timeout 600 --keep-alive-tmo 2 --queues 1
add_path c1 vol1 1 10.77.2.1
check "the disk has two paths" disk_is c1 vol1 live
lose
again 10.77.1.1
check "a path that is disabled, and enabled with another address, becomes live at once" \
	wait_until c1 15 "[ \$(cat $initiator/vol1/paths/1/state) = live ]"

mend path2
again
check "the second path is live again" path_is c1 vol1 1 live
stable
cut path2
# The address of the target's card becomes unknown.
must on c1 'ip neigh flush dev path2'
must path_is c1 vol1 1 connecting
seconds "rdma link delete ${rdma}2"
within "an RDMA device can be removed although an attempt waits" "$took" 15

mend path2
must on c1 "rdma link add ${rdma}2 type $rdma netdev path2"
again
check "the path connects over the new RDMA device" path_is c1 vol1 1 live
lose
disconnect c1 vol1
mend path2

# The last attempts begin before ctrl_loss_tmo, and end after it.
connect c1 vol1 --ctrl-loss-tmo 12 --reconnect-delay 60 --connect-timeout 600 --keep-alive-tmo 2 --queues 1
add_path c1 vol1 1 10.77.2.1
check "the disk with ctrl_loss_tmo 12 has two paths" disk_is c1 vol1 live
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
check "the disk waits for the last attempt of the one path when the other is disabled" disk_is c1 vol1 live
mend path2
again
must path_is c1 vol1 1 live
lose
disconnect c1 vol1
seconds 'rmmod hcablk'
within "the module is removed although an attempt waits" "$took" 15
