#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: a path by which only small packets pass is set aside after a few losses while another one works, and is used again when it is whole.
# turn: 13
# takes: 90
# waits: yes
# timeout: 600

. "${0%/*}/../lib/lib.sh"
. "${0%/*}/../lib/multi.sh"

two_cards 1 target c1
target_address=10.77.1.1
export_volume vol1 "$drive" c1
connect c1 vol1 --ctrl-loss-tmo 600 --reconnect-delay 1
add_path c1 vol1 1 10.77.2.1
check "both paths are live" path_is c1 vol1 1 live
must on c1 "echo round-robin > $initiator/vol1/policy"

# losses: how often the second path was lost
losses() {
	on c1 "dmesg | grep -c 'vol1: path 1 lost'"
}
# passes MTU: frames no longer than this reach the second card from the switch; others are dropped without a word
passes() {
	for guest in target c1; do
		must on $guest "ip link set port2 mtu $1"
	done
}

ON_SECONDS=500 spawn load c1 "fio --output-format=terse --name=v --filename=$device --direct=1 --ioengine=libaio --rw=randrw --bs=64k \
	--iodepth=8 --size=32M --verify=crc32c --verify_fatal=1 --time_based --runtime=60"
must wait_until c1 30 "awk '{ exit !(\$1 + \$5 > 50) }' /sys/block/$disk/stat"
passes 1000
check "the path is lost again and again, and set aside" wait_log c1 120 'vol1: path 1 was lost 3 times in a row: it is set aside for'
check "for longer and longer" wait_log c1 120 'vol1: path 1 was lost 4 times in a row: it is set aside for 4 s'
check "what was written is what is read" join load
times=$(losses)
echo "# it was lost $times times"
less "it is no longer tried every second" "$times" 9
same "nobody saw an error" "0 0" "$(stat_of c1 $initiator/vol1 errors) $(stat_of c1 $initiator/vol1 protocol_errors)"
passes 9000
must on c1 "echo 0 > $initiator/vol1/paths/1/enable && echo 1 > $initiator/vol1/paths/1/enable"
check "who enables it anew wants it now" path_is c1 vol1 1 live
check "the disk is whole" disk_is c1 vol1 live
check "memory of every shape" on c1 "hcablk-scatter $device random $RANDOM 12"
disconnect c1 vol1
