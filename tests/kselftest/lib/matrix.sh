# shellcheck shell=bash disable=SC2034,SC2154 # names are for the tests, and in lib.sh
# SPDX-License-Identifier: GPL-2.0
#
# The fault matrix: two clients of one volume, c1 with one path and c2 with two, and one fault after the other. Needs multi.sh.

# The half of the volume that each client writes.
declare -A matrix_offset=([c1]=0 [c2]=512M)
# The disks' devices.
declare -A matrix_device=()
# The number of runs of load, so that each run writes other data.
matrix_run=0
# ctrl_loss_tmo of the disks that are connected after this.
matrix_tmo=600

# matrix_target: exports the volume after a start of the target. The drive has no volatile cache: a restarted target may have
# forgotten acknowledged writes in a cache, and would fail a flush.
matrix_target() {
	must on target "echo 'write through' > /sys/block/\$(basename \$(readlink -f $drive))/queue/write_cache"
	export_volume vol1 "$drive" c1 c2
}

# matrix_connect CLIENT: connects a disk over path1, and c2 over path2, too
matrix_connect() {
	connect "$1" vol1 --ctrl-loss-tmo $matrix_tmo --keep-alive-tmo $((1 * slow)) --io-timeout $((10 * slow)) --queues 2
	matrix_device[$1]=$device
	[ "$1" = c1 ] || add_path "$1" vol1 1 10.77.2.1
	must disk_is "$1" vol1 live
}

matrix_begin() {
	two_cards 1 target c1 c2
	target_address=10.77.1.1
	matrix_target
	matrix_connect c1
	matrix_connect c2
}

# verifying CLIENT: starts fio, which writes and reads its half and then verifies it, at a rate that makes it last
verifying() {
	ON_SECONDS=400 spawn "verify-$1" "$1" "fio --name=v --filename=${matrix_device[$1]} --offset=${matrix_offset[$1]} --direct=1 \
		--ioengine=libaio --rw=randrw --bsrange=4k-64k --size=$(few 16)M --iodepth=16 --verify=crc32c --verify_fatal=1 \
		--randseed=$matrix_run --rate=1m"
	must wait_until "$1" 30 "awk '{ exit !(\$9 > 0) }' /sys/block/${matrix_device[$1]#/dev/}/stat"
}

# cards_down CARD GUEST…, cards_up CARD GUEST…: disable and enable the card in these guests
cards_down() {
	local card=$1 guest
	shift
	for guest; do
		must on "$guest" "ip link set $card down"
	done
}
cards_up() {
	local card=$1 guest
	shift
	for guest; do
		must on "$guest" "ip link set $card up"
	done
}

# loses CARD: drops all packets of the target and the clients on the card; heals CARD: lets them pass again
loses() {
	local guest
	for guest in target c1 c2; do
		netem $guest "$1" loss 100%
	done
}
heals() {
	local guest
	for guest in target c1 c2; do
		netem $guest "$1"
	done
}

# For each fault: the states of c1's and c2's disks, and the fault's description. A disk with the state `failed` ends: its load
# fails at once, and it is connected anew afterwards.
declare -A matrix_rows=(
	[cut]="queueing degraded a path is cut"
	[flap]="queueing degraded a path is late and flaps"
	[blackout]="queueing queueing all paths are cut"
	[device]="queueing degraded a client's RDMA device is removed"
	[their_device]="queueing degraded the target's RDMA device is removed"
	[port]="queueing degraded a client's port is disabled"
	[their_port]="queueing degraded the target's port is disabled"
	[killed]="queueing queueing the target is killed and started again"
	[withdrawn]="queueing queueing the export is withdrawn and back"
	[stopped]="live live the clients are stopped for longer than the target waits"
	[over]="failed failed all paths are cut for more than ctrl_loss_tmo"
)
fault_cut() { loses path1; }
mend_cut() { heals path1; }
# Late packets also arrive out of order.
fault_flap() {
	local guest
	for _ in 1 2 3; do
		loses path1
		must disk_is c1 vol1 queueing
		netem target path1 delay 30ms 20ms
		for guest in c1 c2; do
			netem $guest path1
		done
		must disk_is c1 vol1 live
	done
	loses path1
}
mend_flap() { heals path1; }
fault_blackout() { loses path1; loses path2; }
mend_blackout() { heals path2; heals path1; }
fault_device() {
	must on c1 "rdma link delete ${rdma}1"
	must on c2 "rdma link delete ${rdma}1"
}
mend_device() {
	must on c1 "rdma link add ${rdma}1 type $rdma netdev path1"
	must on c2 "rdma link add ${rdma}1 type $rdma netdev path1"
}
fault_their_device() { must on target "rdma link delete ${rdma}1"; }
mend_their_device() { must on target "rdma link add ${rdma}1 type $rdma netdev path1"; }
# The other end of the card's link goes down, so that the card has no carrier. With the card itself down soft-RoCE finds no route
# for packets of the connection manager, fails the queue pair of all management (rxe_qp_error() in rxe_requester()), and stays
# mute until the device is replaced.
fault_port() { cards_down port1 c1 c2; }
mend_port() { cards_up port1 c1 c2; }
fault_their_port() { cards_down port1 target; }
mend_their_port() { cards_up port1 target; }
fault_killed() { must vm kill target; }
mend_killed() {
	must vm start target
	two_cards 1 target
	matrix_target
}
fault_withdrawn() {
	must on target 'hcablk target unexport --force vol1'
	must wait_until c1 30 "grep -q 'no volume of this name' $initiator/vol1/error"
}
mend_withdrawn() { matrix_target; }
# The target ends the sessions of both clients, which then wake.
fault_stopped() {
	local guest lost="dmesg | grep -Ec 'vol1: (connection|path 0) lost'"
	local -A before
	for guest in c1 c2; do
		before[$guest]=$(on $guest "$lost")
	done
	for guest in c1 c2; do
		must vm pause $guest
	done
	must wait_until target 150 "[ -z \"\$(cat $target/volumes/vol1/clients)\" ]"
	for guest in c1 c2; do
		must vm resume $guest
	done
	for guest in c1 c2; do
		must wait_until $guest 60 "[ \$($lost) -gt ${before[$guest]} ]"
	done
}
mend_stopped() { :; }
# ctrl_loss_tmo of a client expires after both paths are lost.
fault_over() { loses path1; loses path2; }
mend_over() { heals path2; heals path1; }

# row FAULT: under load that verifies, the function fault_FAULT brings the disks to their states, and after mend_FAULT the disks are
# live, without an error or wrong data.
row() {
	local fault=$1 what guest state started one two
	local -A wanted
	read -r one two what <<< "${matrix_rows[$fault]}"
	wanted=([c1]=$one [c2]=$two)
	matrix_run=$((matrix_run + 1))
	started=$(now_ms)
	for guest in c1 c2; do
		verifying $guest
	done
	"fault_$fault"
	for guest in c1 c2; do
		state=${wanted[$guest]}
		check "$what: $guest's disk is $state" disk_is $guest vol1 "$state"
		[ "$state" = failed ] || continue
		refuse "$what: the requests of $guest fail" join "verify-$guest"
		like "$what: the error of $guest's disk has the reason" "[a-z ]{10}" "$(on $guest "cat $initiator/vol1/error")"
		must on $guest 'hcablk disconnect vol1'
	done
	"mend_$fault"
	for guest in c1 c2; do
		[ "${wanted[$guest]}" != failed ] || { matrix_connect $guest; continue; }
		check "$what: $guest's disk is live again" disk_is $guest vol1 live
		check "$what: fio verifies the data of $guest" join "verify-$guest"
		same "$what: no request of $guest has failed" 0 "$(stat_of "$guest" "$initiator/vol1" errors)"
	done
	echo "# $what: $(($(now_ms) - started)) ms"
}

matrix_end() {
	local guest
	for guest in c1 c2; do
		disconnect $guest vol1
		same "$guest has no queue pair left" 0 "$(queue_pairs $guest)"
	done
	check "the target has no queue pair left" wait_until target 90 "$no_queue_pairs"
}
