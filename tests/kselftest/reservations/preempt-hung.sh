#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: while writes of a preempted host are in a hung drive, no host gets the answer that it is fenced; when they have ended, nothing else is waited for.
# tier: heart
# turn: 19
# takes: 15
# timeout: 480
# waits: yes

. "${0%/*}/../lib/lib.sh"

wwid=6f0c2b62-5f5e-4c0e-9d57-0b8f3e9b0b04
# Each half of the drive can be held up.
must on target "modprobe dm_mod && for half in 0 1; do
		echo \"0 65536 linear $drive \$((half * 65536))\" | dmsetup create half\$half
	done && dmsetup mknodes &&
	printf '0 65536 linear /dev/mapper/half0 0\n65536 65536 linear /dev/mapper/half1 0\n' | dmsetup create both && dmsetup mknodes &&
	$(keep /run/reservations) && modprobe hcablk_target && env echo /run/reservations > $target/reservations"
declare -A disks
for volume in vol1 vol2; do
	export_volume $volume /dev/mapper/both --wwid=$wwid c1 c2
	for guest in c1 c2; do
		connect $guest $volume --ctrl-loss-tmo -1
		disks[$guest$volume]=$device
	done
done
mine=${disks[c1vol1]} other=${disks[c1vol2]}
must on c1 "hcablk-pr $mine register 0 11"
must on c2 "hcablk-pr ${disks[c2vol1]} register 0 22 && hcablk-pr ${disks[c2vol1]} reserve 22 3"

must on target 'dmsetup suspend --nolockfs half0 && dmsetup suspend --nolockfs half1'
spawn victim c2 "dd if=/dev/zero of=${disks[c2vol1]} bs=4k count=1 oflag=direct status=none"
must drive_holds write
spawn first c1 "hcablk-pr $mine abort 11 22 1 > /tmp/first; echo \$? >> /tmp/first"
must wait_until c1 30 "[ \"\$(hcablk-pr $other reservation)\" = '11 1' ]"
spawn second c1 "hcablk-pr $other abort 11 22 1 > /tmp/second; echo \$? >> /tmp/second"
spawn keys c1 "hcablk-pr $other keys > /tmp/keys"
# A request of any host that begins after the preemption, and does not end.
spawn reader c2 "dd if=${disks[c2vol2]} of=/dev/null bs=1M skip=40 count=1 iflag=direct status=none"
must drive_holds read
must on c2 'hcablk disconnect --force vol2'
join reader && fail "the reader fails"
# An answer would take far less time.
must on c1 'usleep 2000000'
silent "while the victim's write is in the drive nothing is answered" on c1 'cat /tmp/first /tmp/second /tmp/keys'
must on target 'dmsetup resume half0'
for name in first second keys; do
	must join $name
done
same "the preemption is answered when the victim's write has ended" 0 "$(on c1 'cat /tmp/first')"
same "the answer to the second preemption is a conflict" "conflict 1" "$(on c1 'echo $(cat /tmp/second)')"
like "reading the keys is answered" ": 11\$" "$(on c1 'cat /tmp/keys')"
must drive_holds read
must on target 'dmsetup resume half1'
refuse "the victim's write fails" join victim

must on c1 'hcablk disconnect --force vol1 && hcablk disconnect --force vol2'
must on c2 'hcablk disconnect --force vol1'
must on target 'hcablk target unexport vol1; hcablk target unexport vol2; for name in both half0 half1; do dmsetup remove $name; done'
