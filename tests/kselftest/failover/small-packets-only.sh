#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: a path over which only small packets pass is set aside after a few losses while another path works, and is used again when it is repaired.
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

# losses: prints how often the second path was lost
losses() {
	on c1 "dmesg | grep -c 'vol1: path 1 lost'"
}
# passes MTU: lets the switch pass frames up to this size to the second card, and drop others silently
passes() {
	for guest in target c1; do
		must on $guest "ip link set port2 mtu $1"
	done
}

ON_SECONDS=500 spawn load c1 "fio --output-format=terse --name=v --filename=$device --direct=1 --ioengine=libaio --rw=randrw --bs=64k \
	--iodepth=8 --size=32M --verify=crc32c --verify_fatal=1 --time_based --runtime=60"
must wait_until c1 30 "awk '{ exit !(\$1 + \$5 > 50) }' /sys/block/$disk/stat"
passes 1000
check "the path is set aside after 3 losses in a row" wait_log c1 120 'vol1: path 1 was lost 3 times in a row: it is set aside for'
check "the path is set aside for longer after 4 losses" wait_log c1 120 'vol1: path 1 was lost 4 times in a row: it is set aside for 4 s'
check "fio verifies the data" join load
times=$(losses)
echo "# path 1 was lost $times times"
less "the path is not tried every second any more" "$times" 9
same "the client has no errors" "0 0" "$(stat_of c1 $initiator/vol1 errors) $(stat_of c1 $initiator/vol1 protocol_errors)"
passes 9000
must on c1 "echo 0 > $initiator/vol1/paths/1/enable && echo 1 > $initiator/vol1/paths/1/enable"
check "a path that is disabled and enabled is tried at once" path_is c1 vol1 1 live
check "the disk is live" disk_is c1 vol1 live
check "memory of every shape is written and read right" on c1 "hcablk-scatter $device random $RANDOM 12"
disconnect c1 vol1
