#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: when a target's machine is killed during a change of reservations, it reads back the last acknowledged state or the change in progress, and that change is made once.
# turn: 12
# takes: 80
# timeout: 3600
# waits: yes

. "${0%/*}/../lib/lib.sh"

rounds=${HCABLK_KILLS:-3}
# Two hosts on one machine, so that one shell makes all changes, in one order.
hosts=(0c0ffee0-0000-4000-8000-000000000001 0c0ffee0-0000-4000-8000-000000000002)
# The changes in a cycle: register, register, reserve, preempt, clear. Prints the generation, the keys and the reservation after
# change N; `before` is the generation before the cycle. A reservation does not count as a generation.
after() {
	local cycles=$(($1 / 5))
	local before=$((cycles * 4))
	case $(($1 % 5)) in
	0) echo "$before: | 0 0" ;;
	1) echo "$((before + 1)): 11 | 0 0" ;;
	2) echo "$((before + 2)): 11 22 | 0 0" ;;
	3) echo "$((before + 2)): 11 22 | 11 1" ;;
	4) echo "$((before + 3)): 22 | 22 1" ;;
	esac
}
# Prints what c2 reads, which makes no changes.
read_back() {
	on c2 "echo \"\$(hcablk-pr $reader keys) | \$(hcablk-pr $reader reservation)\""
}
state() {
	must on target "modprobe -a ext4 && { blkid $drive2 | grep -q ext4 || mkfs.ext4 -q -F $drive2 64M; } && mkdir -p /mnt/state && mount $drive2 /mnt/state && $(keep /mnt/state/reservations) && modprobe hcablk_target && env echo /mnt/state/reservations > $target/reservations"
}
# The same drive as two volumes with one wwid: one for the hosts on c1, and one through which c2 reads.
wwid=6f0c2b62-5f5e-4c0e-9d57-0b8f3e9b0b65
export_for_reader() {
	export_volume vol2 "$drive" --wwid=$wwid c2
}
export_for_hosts() {
	export_volume vol1 "$drive" --wwid=$wwid --allow="${hosts[0]}" --allow="${hosts[1]}"
}

must on target "dd if=/dev/zero of=$drive2 bs=1M count=1 status=none"
state
export_for_reader
export_for_hosts
connect c2 vol2 --ctrl-loss-tmo -1
reader=$device
disks=()
for n in 0 1; do
	connect c1 vol1 --name "host$n" --host-id "${hosts[n]}" --ctrl-loss-tmo -1
	disks+=("$device")
done
same "no host is registered" "$(after 0)" "$(read_back)"

made=0 middle=0 kept=0
for ((round = 1; round <= rounds; round++)); do
	ON_SECONDS=400 spawn changes c1 "n=$made
		rm -f /tmp/stop
		until [ -e /tmp/stop ]; do
			n=\$((n + 1))
			echo \$n > /tmp/begun
			case \$((n % 5)) in
			1) hcablk-pr ${disks[0]} register 0 11 ;;
			2) hcablk-pr ${disks[1]} register 0 22 ;;
			3) hcablk-pr ${disks[0]} reserve 11 1 ;;
			4) hcablk-pr ${disks[1]} preempt 22 11 1 ;;
			0) hcablk-pr ${disks[1]} clear 22 ;;
			esac || exit
			echo \$n > /tmp/made
		done"
	must wait_until c1 60 "[ \$(cat /tmp/made) -gt $made ]"
	on c1 "usleep $((RANDOM * 60))"
	killed=$(now_ms)
	must vm kill target
	# The change in progress waits: its volume is exported only after c2 has read.
	begun=$(on c1 'touch /tmp/stop; cat /tmp/begun /tmp/made')
	read -r begun made <<< "${begun//$'\n'/ }"
	must vm start target
	state
	export_for_reader
	must wait_until c2 120 "[ \$(cat $initiator/vol2/state) = live ]"
	got=$(read_back)
	echo "# round $round: $made changes made, the last one begun is $begun: $got" >&2
	[ "$begun" = "$made" ] || middle=$((middle + 1))
	if [ "$got" = "$(after "$begun")" ]; then
		[ "$begun" = "$made" ] || kept=$((kept + 1))
	else
		same "round $round: the target reads back the last acknowledged state" "$(after "$made")" "$got"
	fi
	export_for_hosts
	if join changes; then
		made=$begun
		same "round $round: the change in progress is made, and made once" "$(after "$made")" "$(read_back)"
	else
		# A change waits for a minute: if it failed sooner, the cause is not a slow boot.
		took=$(($(now_ms) - killed))
		less "round $round: the failed change has waited long enough" 50000 $took
		[ "$got" != "$(after "$begun")" ] || made=$begun
		same "round $round: the last acknowledged state is there, or the change in progress" "$(after "$made")" "$(read_back)"
	fi
done
# A change may also have begun after the target's death: the client cannot know.
echo "# $rounds kills left $middle changes without an answer, of which $kept were in the file"
less "some kills interrupted a change" 0 $middle
for n in 0 1; do
	must on c1 "hcablk disconnect --force host$n"
done
must on c2 'hcablk disconnect --force vol2'
must on target 'hcablk target unexport vol1; hcablk target unexport vol2; umount /mnt/state'
