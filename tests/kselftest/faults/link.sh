#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: a broken queue pair, a pulled cable and quick reconnects under load lose no answered write and leave nothing behind.
# turn: 23
# takes: 60
# skips: siw
# waits: yes
# timeout: 480

. "${0%/*}/../lib/lib.sh"

[ "$rdma" = rxe ] || skip "the test reads soft-RoCE's counters"

no_pairs="[ \$(rdma resource show qp | grep -v 'type GSI' | wc -l) = 0 ]"

export_volume vol1 "$drive" c1 c2
connect c1 vol1 --io-timeout 5

# The writer counts its answered writes: those from before the cut must be on the drive afterwards. The disk may be removed
# between two writes: the next one must not make a file of its name.
must on c1 "for n in \$(seq 0 99); do printf '%-4096s' \"block \$n\"; done > /tmp/blocks"
spawn writer c1 "n=0; while dd if=/tmp/blocks of=$device bs=4k skip=\$((n % 100)) seek=\$n count=1 oflag=direct conv=nocreat 2> /dev/null; do
	n=\$((n + 1)); echo \$n > /tmp/answered
done; exit 1"
start_load load c1 "$device" --offset=512M
must wait_until c1 30 '[ -s /tmp/answered ] && [ $(cat /tmp/answered) -ge 20 ]'
must vm link-down c1 0
ends_within load 40000 "the client's cable is pulled"
ends_within writer 10000 "the client's cable is pulled, writer"
check "the disk is removed" wait_until c1 30 "grep -q failed $initiator/vol1/state && [ ! -e /sys/block/$disk ]"
like "the disk's error has the reason" "^(the target no longer responds|the target has not responded to a keep-alive|a request got no response in time|the connection broke: )" "$(on c1 "cat $initiator/vol1/error")"
check "the client has no queue pair left" wait_until c1 30 "$no_pairs"
must vm link-up c1 0
must on c1 'hcablk disconnect vol1'
check "the target ends the session" wait_until target 60 "[ -z \"\$(cat $target/volumes/vol1/clients)\" ]"
must wait_until c1 60 "ping -c 1 -W 1 $target_address"
connect c1 vol1
check "every answered write is on the drive" on c1 "n=0; while [ \$n -lt \$(cat /tmp/answered) ]; do
	dd if=/tmp/blocks bs=4k skip=\$((n % 100)) count=1 2> /dev/null; n=\$((n + 1))
done > /tmp/wanted && cmp -n \$((4096 * n)) /tmp/wanted $device; r=\$?; rm -f /tmp/wanted /tmp/blocks; exit \$r"

# sent_again: prints the number of retransmissions of both sides
sent_again() {
	echo $(($(rxe_count c1 completer_retry_err) + $(rxe_count target completer_retry_err)))
}

# flaps GUEST BLOCK-KIB TRY: pulls the cable between c1 and the target at this end, and plugs it in at once, under load.
flaps() {
	local end=$1 kib=$2 pulled
	pulled=$(on "$end" 'cat /sys/class/net/eth0/carrier_down_count')
	ON_SECONDS=600 spawn flap c1 "fio --name=v --filename=$device --direct=1 --ioengine=libaio --rw=randrw --bs=${kib}k --iodepth=16 \
		--offset=512M --size=$(few 8)M --verify=crc32c --verify_fatal=1 --allow_file_create=0 > /tmp/load 2>&1"
	must wait_until c1 30 "awk '{ exit !(\$9 >= 8) }' /sys/block/$disk/stat"
	must vm link-down "$end" 0
	must wait_until "$end" 60 "[ \$(cat /sys/class/net/eth0/carrier_down_count) -gt $pulled ]"
	must vm link-up "$end" 0
	survives c1 vol1 "a short cut at $end, $kib KiB" joined flap c1
	must wait_until c1 60 "ping -c 1 -W 1 $target_address"
	[ $survived = 1 ] || connect c1 vol1
}
# Soft-RoCE ends a connection when its own card refuses a packet. The target's card is a port of a bridge, which drops
# packets instead; requests that register no memory are then sent again.
flaps c1 16 1
survives_fault "a short cut at the target" sent_again 6 flaps target 4
disconnect c1 vol1

# c1 connects and disconnects quickly, every other time with a request under way, while c2 works.
connect c2 vol1
ON_SECONDS=600 spawn steady c2 "fio --name=v --filename=$device --direct=1 --ioengine=libaio --rw=randrw --bs=16k --iodepth=16 \
	--offset=512M --size=$(few 12)M --verify=crc32c --verify_fatal=1"
must wait_until c2 30 "awk '{ exit !(\$5 > 10) }' /sys/block/$disk/stat"
ON_SECONDS=600 check "a client connects and disconnects ten times" on c1 "n=0; while [ \$n -lt 10 ]; do
	disk=\$(hcablk connect $target_address vol1) || exit 1
	if [ \$((n % 2)) = 1 ]; then dd if=\$disk of=/dev/null bs=64k count=8 iflag=direct 2> /dev/null || exit 1; fi
	hcablk disconnect vol1 || exit 1
	n=\$((n + 1))
done"
check "fio verifies the other client's data" join steady
check "the target has one session left" wait_until target 30 "[ \$(wc -l < $target/volumes/vol1/clients) = 1 ]"
disconnect c2 vol1

# A volume is disabled and enabled meanwhile: each attempt to connect succeeds or has a reason.
export_volume vol2 "$drive2" c1
ON_SECONDS=600 spawn switch target "while [ ! -e /tmp/enough ]; do
	echo 0 > $target/volumes/vol2/enable && echo 1 > $target/volumes/vol2/enable || exit 1
	usleep $((500000 * slow))
done; rm /tmp/enough"
ON_SECONDS=500 check "each connection to a volume that is disabled and enabled succeeds or fails with an error" on c1 "n=0; rm -f /tmp/worked; while [ \$n -lt 12 ]; do
	if disk=\$(hcablk connect $target_address vol2 2>> /tmp/output); then
		echo >> /tmp/worked
		dd if=\$disk of=/dev/null bs=64k count=4 iflag=direct 2> /dev/null
	fi
	hcablk disconnect --if-exists vol2 || exit 1
	n=\$((n + 1))
done; rm -f /tmp/output"
must on target 'touch /tmp/enough'
check "the volume can be disabled and enabled meanwhile" join switch
less "some of the connections succeeded" 0 "$(on c1 'cat /tmp/worked | wc -l; rm -f /tmp/worked')"
check "the target has no session left" wait_until target 30 "[ -z \"\$(cat $target/volumes/vol2/clients)\" ]"
for guest in c1 c2 target; do
	same "$guest: no queue pair is left" 0 "$(queue_pairs $guest)"
done
connect c1 vol2
check "the disk works at the end" on c1 "hcablk-scatter $device random 79 4"
