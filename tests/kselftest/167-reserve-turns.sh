#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: a host that changes reservations without a pause, by many disks at once, has one change made for each of another host's, not all of them.
# group: reserve
# waits: yes
# timeout: 300

. "${0%/*}/lib.sh"

disks=8 changes=6
# A change is written for so many milliseconds, twice.
delay=50
must on target "modprobe -a dm_mod dm_delay ext4 && printf '0 16384 delay $drive2 0 0 $drive2 0 $delay\n' | dmsetup create kept && dmsetup mknodes &&
	mkfs.ext4 -q -F -b 4096 -O ^has_journal /dev/mapper/kept && mkdir -p /mnt/state && mount /dev/mapper/kept /mnt/state &&
	mkdir /mnt/state/reservations && modprobe hcablk_target && env echo /mnt/state/reservations > $target/reservations"
export_volume vol1 "$drive" --wwid=6f0c2b62-5f5e-4c0e-9d57-0b8f3e9b0b67 c1 c2
connect c2 vol1 --queues 1
share=$device
for ((n = 0; n < disks; n++)); do
	connect c1 vol1 --name "vol1-$n" --queues 1
	must on c1 "cat > /tmp/change$n << 'END'
n=0
while [ ! -e /tmp/stop ]; do
	hcablk-pr $device ignore 11 || exit
	n=\$((n + 1))
	echo \$n > /tmp/changes$n.new && mv /tmp/changes$n.new /tmp/changes$n
done
touch /tmp/ended$n
END"
done
# A guest runs no more than a few commands at a time.
ON_SECONDS=250 spawn changing c1 'for change in /tmp/change?; do sh $change & done; wait'
# made: how many changes the first host was told of.
made() {
	on c1 "cat /tmp/changes* 2> /dev/null | awk '{ n += \$1 } END { print n + 0 }'"
}
must wait_until c1 60 "[ \$(cat /tmp/changes* 2> /dev/null | wc -l) -ge 3 ]"
before=$(made)
check "another host makes its changes" on c2 "for n in \$(seq $changes); do hcablk-pr $share ignore \$((20 + n)) || exit; done"
others=$(($(made) - before))
check "the first one has made some meanwhile ($others)" test "$others" -gt 0
check "but not more than three for each ($others)" test "$others" -le $((3 * changes))
must on c1 'touch /tmp/stop'
must join changing
same "none of its changes has failed" $disks "$(on c1 'ls /tmp/ended? | wc -l')"
like "both are registered" ": 11 $((20 + changes))\$|: $((20 + changes)) 11\$" "$(on c2 "hcablk-pr $share keys")"
for ((n = 0; n < disks; n++)); do
	must on c1 "hcablk disconnect vol1-$n"
done
disconnect c2 vol1
must on target 'hcablk target unexport vol1 && umount /mnt/state && dmsetup remove kept'
