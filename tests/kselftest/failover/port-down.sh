#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: a disk leaves a path whose port goes down for another path at once, also with ctrl_loss_tmo 0; a waiting path that is disabled and enabled connects at once.
# turn: 13
# takes: 10
# guests: target c1
# skips: siw

. "${0%/*}/../lib/lib.sh"
. "${0%/*}/../lib/multi.sh"

[ "$rdma" = rxe ] || skip "a port of soft-RoCE goes down with its network card"
two_cards 1 target c1
target_address=10.77.1.1
export_volume vol1 "$drive" --wwid=6f0c2b62-5f5e-4c0e-9d57-0b8f3e9b0a45 c1

# left N: takes a path's port down for the N-th time, and checks that the disk leaves the path. Counts in $by_port the losses that
# the port's event caused: on a busy machine soft-RoCE may end the queue pair before it reports the port.
left() {
	local lost
	# Nothing else notices in time: no keep-alive is sent, and the transport's last retry comes later than the checks.
	connect c1 vol1 --ctrl-loss-tmo 0 --keep-alive-tmo 600 --queues 1 --connect-timeout 600
	add_path c1 vol1 1 10.77.2.1
	check "the disk has two paths" disk_is c1 vol1 live
	must on c1 'ip link set port1 down'
	check "the path of the port that is down is lost" disk_is c1 vol1 degraded
	check "the log has the loss of the path" wait_until c1 30 "[ \$(dmesg | grep -c 'path 0 lost: ') = $1 ]"
	lost=$(on c1 "dmesg | grep 'path 0 lost: ' | tail -n 1")
	check "writes use the other path" on c1 "dd if=/dev/zero of=$device bs=4k count=8 oflag=direct"
	same "the client has no errors" 0 "$(stat_of c1 $initiator/vol1 errors)"
	must on c1 'ip link set port1 up'
	disconnect c1 vol1
	[[ $lost != *"the RDMA port went down"* ]] || by_port=$((by_port + 1))
}

by_port=0
for try in 1 2 3; do
	[ $by_port = 1 ] || left $try
done
same "the port's event caused at least one loss in three" 1 $by_port

# A path that is lost soon after it became live waits for at least half of reconnect_delay.
connect c1 vol1 --ctrl-loss-tmo 600 --reconnect-delay 60 --queues 1
add_path c1 vol1 1 10.77.2.1
check "the disk has two paths with a long reconnect_delay" disk_is c1 vol1 live
must on c1 'rdma link delete '"$rdma"'2'
check "a path waits for an RDMA device" path_is c1 vol1 1 waiting
must on c1 "rdma link add ${rdma}2 type $rdma netdev path2"
before=$(on c1 'cut -d " " -f 1 /proc/uptime')
must on c1 "cd $initiator/vol1/paths/1 && echo 0 > enable && echo 1 > enable"
check "a waiting path that is disabled and enabled becomes live" path_is c1 vol1 1 live
within "that path does not wait for reconnect_delay" "$(on c1 'cut -d " " -f 1 /proc/uptime | cut -d . -f 1')" $((${before%.*} + 25))
disconnect c1 vol1
