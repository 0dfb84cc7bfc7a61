#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: packets that are lost, late, duplicated or out of order, on either side, change no data, and the disk survives faults after which packets are sent again.
# tier: heart
# turn: 4
# takes: 60
# timeout: 400

. "${0%/*}/../lib/lib.sh"

share c1 c2
lost=0

# lost: prints the number of packets that netem has dropped so far, at places where it was turned off.
lost() {
	echo "$lost"
}
dropped() {
	on "$1" "tc -s qdisc show dev $2 | sed -n 's/.*dropped \([0-9]*\).*/\1/p' | head -n 1"
}

# tcp_count GUEST TABLE NAME: prints a counter of the kernel's TCP
tcp_count() {
	on "$1" "cat /proc/net/snmp /proc/net/netstat | awk '\$1 == \"$2:\" && !seen { seen = split(\$0, name); next }
		\$1 == \"$2:\" { for (i = 2; i <= seen; i++) if (name[i] == \"$3\") print \$i }'"
}

# The transport's own counters show that a fault reached it, and what it did.
case $rdma in
rxe)
	sent_again() { rxe_count "$1" completer_retry_err; }
	came_twice() { rxe_count "$1" duplicate_request; }
	out_of_order() { rxe_count "$1" out_of_seq_request; }
	;;
*)
	sent_again() { tcp_count "$1" Tcp RetransSegs; }
	came_twice() { tcp_count "$1" TcpExt TCPDSACKOldSent; }
	out_of_order() { tcp_count "$1" TcpExt TCPOFOQueue; }
	;;
esac

# verified SEED: runs load on c1 that verifies its data.
verified() {
	fio c1 "--name=v --filename=$device --rw=randrw --bsrange=4k-128k --iodepth=16 --size=$(few 2)M --randseed=$1 \
		--verify=crc32c --verify_fatal=1 --allow_file_create=0" && on c1 "hcablk-scatter $device gaps $1 2"
}

# small SEED: runs load of requests that register no memory, all of which soft-RoCE can send again.
small() {
	fio c1 "--name=v --filename=$device --rw=randrw --bsrange=4k-8k --iodepth=8 --size=1M --offset=128M --randseed=$1 \
		--verify=crc32c --verify_fatal=1 --allow_file_create=0"
}

# under "DESCRIPTION" LOAD SEED "EMULATION" PLACE…: runs the load while the network emulator is on at these places ("GUEST CARD"),
# and then turns it off.
under() {
	local what=$1 load=$2 seed=$3 emulation=$4 place
	shift 4
	for place; do
		# shellcheck disable=SC2086 # words
		netem $place $emulation
	done
	survives c1 vol1 "$what" "$load" "$seed"
	for place; do
		# shellcheck disable=SC2086 # two words
		{
			lost=$((lost + $(dropped $place)))
			netem $place
		}
	done
	[ $survived = 1 ] || {
		must wait_until c1 60 "ping -c 1 -W 1 $target_address"
		connect c1 vol1
	}
}

# provokes "DESCRIPTION" SEED "EMULATION" "EVIDENCE" "COUNTER" PLACE…: repeats that until the command COUNTER prints another number.
# Soft-RoCE ends a connection after nearly any fault, perhaps before it counts anything.
provokes() {
	local what=$1 seed=$2 emulation=$3 evidence=$4 counter=$5 before after try
	shift 5
	before=$($counter)
	for try in 1 2 3 4 5 6; do
		under "$what" verified $((seed * 10 + try)) "$emulation" "$@"
		after=$($counter)
		[ "$after" = "$before" ] || break
	done
	less "$evidence" "$before" "$after"
}

# loses PLACE SEED TRY: runs small requests while packets are lost there.
loses() {
	under "packets of small requests are lost at $1" small $(($2 * 10 + $3)) "loss 2%" "$1"
}

provokes "packets of the client are lost" 761 "loss 2%" "some packets of the client were lost" lost "c1 eth0"
survives_fault "packets of the client are lost" "sent_again c1" 6 loses "c1 eth0" 771
provokes "packets of the client are duplicated" 762 "duplicate 20%" "the target received packets twice" "came_twice target" "c1 eth0"
provokes "packets of the client are out of order" 763 "delay 2ms reorder 75% 50%" "the target received packets out of order" "out_of_order target" \
	"c1 eth0"
provokes "packets of the target are lost" 764 "loss 2%" "some packets of the target were lost" lost "target eth0"
survives_fault "packets of the target are lost" "sent_again target" 6 loses "target eth0" 774
provokes "packets of the target are late, each by another time" 765 "delay 4ms 3ms" "the client received packets out of order" "out_of_order c1" "target eth0"

# All faults on both sides, and another client without faults.
spawn neighbour c2 "fio --name=v --filename=$device --direct=1 --ioengine=libaio --rw=randrw --bs=16k --iodepth=4 \
	--offset=512M --size=$(few 4)M --verify=crc32c --verify_fatal=1 --allow_file_create=0"
provokes "all faults at once" 766 "delay 2ms 1ms loss 0.5% duplicate 2%" "some packets of both sides were lost" lost "c1 eth0" "target eth0"
check "fio verifies the other client's data" join neighbour
same "the other client is still connected" live "$(on c2 "cat $initiator/vol1/state")"
same "the other client has no errors" 0 "$(stat_of c2 $initiator/vol1 errors)"
check "fio verifies the data without faults" verified 767
