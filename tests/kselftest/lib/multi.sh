# shellcheck shell=bash disable=SC2154 # these names are in lib.sh
# SPDX-License-Identifier: GPL-2.0
#
# Functions of tests of disks with several paths: two cards in each guest, with an RDMA device each.

# two_cards NUMBER GUEST…: makes the cards path1 and path2 of these guests, with the addresses 10.77.1.N and 10.77.2.N, N from
# NUMBER, and an RDMA device each. A fault of one card leaves the other alone. Both are on a bridge with the guest's own card,
# which only the target still uses for itself; an RDMA device of that card would take the addresses of macvlans and VLANs for its
# own.
two_cards() {
	local number=$1 guest
	shift
	for guest; do
		must on "$guest" "modprobe bridge && modprobe sch_netem || exit
			echo 1 > /proc/sys/net/ipv4/conf/all/arp_ignore
			bridge=br0
			[ -e /sys/class/net/br0 ] || {
				bridge=br1
				ip link add br1 type bridge stp_state 0 forward_delay 0 mcast_snooping 0
				ip link set eth0 master br1 && ip link set br1 mtu 9000 up &&
				ip address add \$(ip -4 -o address show eth0 | awk '{ print \$4 }') dev br1 noprefixroute &&
				ip route add 10.77.0.1/32 dev br1
			} || exit
			for n in 1 2; do
				ip link add path\$n mtu 9000 type veth peer name port\$n mtu 9000 &&
				ip link set port\$n master \$bridge up && ip link set path\$n up &&
				ip address add 10.77.\$n.$number/24 dev path\$n && rdma link add $rdma\$n type $rdma netdev path\$n &&
					tc qdisc add dev path\$n root netem limit 10000 || exit
			done"
		number=$((number + 1))
	done
}

# add_path GUEST DISK NUMBER ADDRESS: adds a path to the disk
add_path() {
	must on "$1" "cd $initiator/$2/paths && mkdir $3 && echo $4 > $3/address && echo 1 > $3/enable"
}

# path_is GUEST DISK NUMBER STATE: waits until the path has this state
path_is() {
	wait_until "$1" 60 "[ \$(cat $initiator/$2/paths/$3/state) = $4 ]"
}

# disk_is GUEST DISK STATE: waits until the disk has this state
disk_is() {
	wait_until "$1" 60 "[ \$(cat $initiator/$2/state) = $3 ]"
}

# sent_by GUEST CARD: prints how many packets the card has sent
sent_by() {
	on "$1" "cat /sys/class/net/$2/statistics/tx_packets"
}

# cut CARD, mend CARD: drops all packets between the first client and the target on these cards, and lets them pass again.
cut() {
	netem c1 "$1" loss 100%
	netem target "$1" loss 100%
}
mend() {
	netem c1 "$1"
	netem target "$1"
}

# counters GUEST DISK: prints all counters of the disk
counters() {
	on "$1" "cat $initiator/$2/stats"
}
# went_back BEFORE AFTER: prints the counters that have decreased
went_back() {
	[ -n "$1" ] && [ -n "$2" ] || return
	awk 'NR == FNR { was[$1] += $2; next } { now[$1] += $2 }
		END { for (name in was) if (now[name] + 0 < was[name]) print name ": " was[name] " to " now[name] + 0 }' \
		<(echo "$1") <(echo "$2")
}
