#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: a broken queue pair, a pulled cable and hasty connecting under load lose no answered write and leave nothing behind.
# turn: 23
# takes: 60
# skips: siw
# waits: yes
# timeout: 480

. "${0%/*}/../lib/lib.sh"

[ "$rdma" = rxe ] || skip "it reads soft-RoCE's counters"

no_pairs="[ \$(rdma resource show qp | grep -v 'type GSI' | wc -l) = 0 ]"

export_volume vol1 "$drive" c1 c2
connect c1 vol1 --io-timeout 5

# Writes whose answers are remembered: what was answered before the cable went is there afterwards. When the disk goes
# between two of them, the next must not make a file of its name.
must on c1 "for n in \$(seq 0 99); do printf '%-4096s' \"block \$n\"; done > /tmp/blocks"
spawn writer c1 "n=0; while dd if=/tmp/blocks of=$device bs=4k skip=\$((n % 100)) seek=\$n count=1 oflag=direct conv=nocreat 2> /dev/null; do
	n=\$((n + 1)); echo \$n > /tmp/answered
done; exit 1"
start_load load c1 "$device" --offset=512M
must wait_until c1 30 '[ -s /tmp/answered ] && [ $(cat /tmp/answered) -ge 20 ]'
must vm link-down c1 0
ends_within load 40000 "the client's cable pulled"
ends_within writer 10000 "the writer at it"
check "the disk goes" wait_until c1 30 "grep -q failed $initiator/vol1/state && [ ! -e /sys/block/$disk ]"
like "the reason is told" "^(the target does not answer any more|the target has not answered a keep-alive|a request was not answered in time|the connection broke: )" "$(on c1 "cat $initiator/vol1/error")"
check "no queue pair is left" wait_until c1 30 "$no_pairs"
must vm link-up c1 0
must on c1 'hcablk disconnect vol1'
check "the target ends the session" wait_until target 60 "[ -z \"\$(cat $target/volumes/vol1/clients)\" ]"
must wait_until c1 60 "ping -c 1 -W 1 $target_address"
connect c1 vol1
check "every answered write is there" on c1 "n=0; while [ \$n -lt \$(cat /tmp/answered) ]; do
	dd if=/tmp/blocks bs=4k skip=\$((n % 100)) count=1 2> /dev/null; n=\$((n + 1))
done > /tmp/wanted && cmp -n \$((4096 * n)) /tmp/wanted $device; r=\$?; rm -f /tmp/wanted /tmp/blocks; exit \$r"

# sent_again: by both sides together
sent_again() {
	echo $(($(rxe_count c1 completer_retry_err) + $(rxe_count target completer_retry_err)))
}

# flaps GUEST BLOCK-KIB TRY: the cable between c1 and the target is out and in at once, at this end, under load.
flaps() {
	local end=$1 kib=$2 pulled
	pulled=$(on "$end" 'cat /sys/class/net/eth0/carrier_down_count')
	ON_SECONDS=600 spawn flap c1 "fio --name=v --filename=$device --direct=1 --ioengine=libaio --rw=randrw --bs=${kib}k --iodepth=16 \
		--offset=512M --size=$(few 8)M --verify=crc32c --verify_fatal=1 --allow_file_create=0 > /tmp/load 2>&1"
	must wait_until c1 30 "awk '{ exit !(\$9 >= 8) }' /sys/block/$disk/stat"
	must vm link-down "$end" 0
	must wait_until "$end" 60 "[ \$(cat /sys/class/net/eth0/carrier_down_count) -gt $pulled ]"
	must vm link-up "$end" 0
	survives c1 vol1 "a cable out for a moment at $end, $kib KiB" joined flap c1
	must wait_until c1 60 "ping -c 1 -W 1 $target_address"
	[ $survived = 1 ] || connect c1 vol1
}
# Soft-RoCE ends a connection when its own card takes no packet. At the other end the target's bridge has the card, and
# drops packets; then what registers no memory can be sent again.
flaps c1 16 1
bears "a cable out for a moment at the target" sent_again 6 flaps target 4
disconnect c1 vol1

# Hasty: c1 comes and goes, every other time with a request under way, while c2 works.
connect c2 vol1
ON_SECONDS=600 spawn steady c2 "fio --name=v --filename=$device --direct=1 --ioengine=libaio --rw=randrw --bs=16k --iodepth=16 \
	--offset=512M --size=$(few 12)M --verify=crc32c --verify_fatal=1"
must wait_until c2 30 "awk '{ exit !(\$5 > 10) }' /sys/block/$disk/stat"
ON_SECONDS=600 check "a client comes and goes ten times" on c1 "n=0; while [ \$n -lt 10 ]; do
	disk=\$(hcablk connect $target_address vol1) || exit 1
	if [ \$((n % 2)) = 1 ]; then dd if=\$disk of=/dev/null bs=64k count=8 iflag=direct 2> /dev/null || exit 1; fi
	hcablk disconnect vol1 || exit 1
	n=\$((n + 1))
done"
check "the other's data is right" join steady
check "one session is left" wait_until target 30 "[ \$(wc -l < $target/volumes/vol1/clients) = 1 ]"
disconnect c2 vol1

# And against a volume that is turned off and on: each attempt works or says why.
export_volume vol2 "$drive2" c1
ON_SECONDS=600 spawn switch target "while [ ! -e /tmp/enough ]; do
	echo 0 > $target/volumes/vol2/enable && echo 1 > $target/volumes/vol2/enable || exit 1
	usleep $((500000 * slow))
done; rm /tmp/enough"
ON_SECONDS=500 check "connecting to a volume that comes and goes works or is an error" on c1 "n=0; rm -f /tmp/worked; while [ \$n -lt 12 ]; do
	if disk=\$(hcablk connect $target_address vol2 2>> /tmp/output); then
		echo >> /tmp/worked
		dd if=\$disk of=/dev/null bs=64k count=4 iflag=direct 2> /dev/null
	fi
	hcablk disconnect --if-exists vol2 || exit 1
	n=\$((n + 1))
done; rm -f /tmp/output"
must on target 'touch /tmp/enough'
check "the volume could be turned off and on" join switch
less "some of the connections worked" 0 "$(on c1 'cat /tmp/worked | wc -l; rm -f /tmp/worked')"
check "no session is left" wait_until target 30 "[ -z \"\$(cat $target/volumes/vol2/clients)\" ]"
for guest in c1 c2 target; do
	same "no queue pair is left: $guest" 0 "$(queue_pairs $guest)"
done
connect c1 vol2
check "all works at the end" on c1 "hcablk-scatter $device random 79 4"
