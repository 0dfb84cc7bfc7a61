#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: with keep_alive_tmo 1 a silent target is noticed within 2 s, a target whose drive hangs does not count as silent, and a target notices a silent client.
# tier: heart
# turn: 9
# takes: 30
# waits: yes

. "${0%/*}/../lib/lib.sh"
. "${0%/*}/../lib/multi.sh"

two_cards 1 target c1
target_address=10.77.1.1
must on target "modprobe dm_mod && echo \"0 65536 linear $drive 0\" | dmsetup create gate && dmsetup mknodes"
export_volume vol1 /dev/mapper/gate --wwid=6f0c2b62-5f5e-4c0e-9d57-0b8f3e9b0a05 c1
connect c1 vol1 --ctrl-loss-tmo 600 --keep-alive-tmo 1 --io-timeout 120
same "the configured keep_alive_tmo is shown" 1 "$(on c1 "cat $initiator/vol1/keep_alive_tmo")"

# A hung drive does not hold up keep-alives.
must on target 'dmsetup suspend --nolockfs gate'
ON_SECONDS=200 spawn held c1 "dd if=$device of=/dev/null bs=4k count=1 iflag=direct"
must wait_until c1 30 "awk '{ exit !\$1 }' /sys/block/$disk/inflight"
before=$(stat_of c1 $initiator/vol1 keep_alives)
check "keep-alives are answered while the drive hangs" wait_until c1 60 \
	"awk '\$1 == \"keep_alives\" { exit \$2 < $((before + 8)) }' $initiator/vol1/stats"
same "the connection stays live while the drive hangs" live "$(on c1 "cat $initiator/vol1/state")"
must on target 'dmsetup resume gate'
check "the read that the drive held ends" join held

# stamp REGEX: prints the time of the last matching line of a log, in milliseconds. The client's clock measures from the
# moment at which its card starts to drop packets until the path is lost.
stamp() {
	sed -nE "s/^\[ *([0-9]+)\.([0-9]{3})[0-9]*\].*$1.*/\1\2/p" | tail -n 1
}
times=()
for round in 1 2 3; do
	# two_cards() has installed the emulator: its setting is only changed, see netem().
	must on c1 "tc qdisc replace dev path1 root netem limit 10000 loss 100% && echo 'test: silence $round' > /dev/kmsg"
	check "silence $round is noticed" disk_is c1 vol1 queueing
	# The state changes a moment before the line is logged.
	must wait_until c1 30 "dmesg | sed '1,/test: silence $round/d' | grep -q lost:"
	like "silence $round is logged as a keep-alive without an answer" "the target has not responded to a keep-alive for 1 s" "$(on c1 "dmesg | sed '1,/test: silence $round/d' | grep lost:")"
	log=$(on c1 "dmesg | sed -n '/test: silence $round/,\$p'")
	silent=$(stamp "test: silence $round" <<< "$log") noticed=$(stamp "connection lost: " <<< "$log")
	times+=($((noticed - silent)))
	within "silence $round is noticed within 10 s, however busy the machine is" $((noticed - silent)) $((10000 * slow))
	check "the target notices silence $round of the client" wait_until target 60 "[ -z \"\$(cat $target/volumes/vol1/clients)\" ]"
	netem c1 path1
	check "the disk is connected again after silence $round" disk_is c1 vol1 live
done
# A guest may not be scheduled in time: the smallest of three values is the driver's own.
least=$(printf '%s\n' "${times[@]}" | sort -n | head -n 1)
echo "# noticed after ${times[*]} ms"
within "silence is noticed within 2 s" "$least" $((2000 * slow + 1))
like "the target ended the session because of the client's silence" "admin queue pair: nothing was received for [34] s" "$(on target dmesg)"
check "the disk works" on c1 "dd if=$device of=/dev/null bs=4k count=4 iflag=direct"
disconnect c1 vol1
must on target 'hcablk target unexport vol1 && dmsetup remove gate'
