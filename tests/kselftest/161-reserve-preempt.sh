#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: when preempt-and-abort has returned nothing of the victim reaches the drive, at whatever moment of its writes it comes.
# group: reserve
# timeout: 1600
# turns: 6
# takes: 200

. "${0%/*}/lib.sh"

rounds=10
[ -z "${HCABLK_WHOLE:-}" ] || rounds=1000
# Milliseconds that the drive takes for a write: longer than it takes to look at it.
delay=2000

must on target "modprobe -a dm_mod dm_delay && printf '0 400000 delay $drive 0 0 $drive 0 $delay\n' | dmsetup create slow && dmsetup mknodes && mkdir -p /run/reservations && modprobe hcablk_target && env echo /run/reservations > $target/reservations"
export_volume vol1 /dev/mapper/slow c1 c2
connect c1 vol1 --ctrl-loss-tmo -1
mine=$device
connect c2 vol1 --ctrl-loss-tmo -1
share=$device
must on c1 "hcablk-pr $mine register 0 11"

late=0 wrote=0
for ((round = 1; round <= rounds; round++)); do
	must wait_until c2 60 "[ \$(cat $initiator/vol1/state) = live ]"
	must on c2 "hcablk-pr $share register 0 22"
	must on c1 "hcablk-pr $mine reserve 11 3"
	before=$(on target "dd if=$drive bs=1M count=64 iflag=direct 2> /dev/null | md5sum")
	ON_SECONDS=120 spawn victim c2 "fio --name=load --filename=$share --direct=1 --ioengine=libaio --rw=randwrite --bs=32k --iodepth=16 --size=64M --time_based --runtime=100 --refill_buffers --randseed=$round 2>&1"
	must wait_until c2 30 "[ \$(awk '{ print \$9 }' /sys/block/${share#/dev/}/stat) -gt 0 ]"
	on c1 "usleep $((RANDOM * 8)); hcablk-pr $mine abort 11 22 3" || { fail "round $round: it is preempted"; break; }
	# When the drive has had its time it is as it was when the command had returned.
	sums=$(on target "sum() { dd if=$drive bs=1M count=64 iflag=direct 2> /dev/null | md5sum; }; sum; usleep $((delay * 1500)); sum")
	read -r first _ second _ <<< "${sums//$'\n'/ }"
	[ "$first" = "$second" ] || late=$((late + 1))
	[ "$first" = "${before%% *}" ] || wrote=$((wrote + 1))
	join victim > /dev/null && fail "round $round: the victim's writes fail"
	must on c1 "hcablk-pr $mine release 11 3"
done
same "of $rounds preemptions so many had a write of the victim come late" 0 $late
same "in each the victim had written before" $rounds $wrote
for guest in c1 c2; do
	must on $guest 'hcablk disconnect --force vol1'
done
must on target 'hcablk target unexport vol1 && dmsetup remove slow'
