#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: a host that asks for changes of reservations without a pause, by many sessions, has one made for each of another host's, not all of them.
# turn: 2
# takes: 30
# waits: yes
# skips: siw
# timeout: 300

. "${0%/*}/../lib/lib.sh"

[ "$rdma" = rxe ] || skip "the hostile client's library speaks soft-RoCE only"

changes=6
# A change is written for so many milliseconds, twice: longer than the other host takes for a command, so that it asks nearly
# all the time.
delay=200
must on target "modprobe -a dm_mod dm_delay ext4 && printf '0 16384 delay $drive2 0 0 $drive2 0 $delay\n' | dmsetup create kept && dmsetup mknodes &&
	mkfs.ext4 -q -F -b 4096 -O ^has_journal /dev/mapper/kept && mkdir -p /mnt/state && mount /dev/mapper/kept /mnt/state &&
	$(keep /mnt/state/reservations) && modprobe hcablk_target && env echo /mnt/state/reservations > $target/reservations"
export_volume vol1 "$drive" --wwid=6f0c2b62-5f5e-4c0e-9d57-0b8f3e9b0b67 c1 c2
connect c2 vol1 --queues 1
# changed: how many changes there were in all
changed() {
	on c2 "hcablk-pr $device keys" | cut -d: -f1
}
ON_SECONDS=250 spawn insistent c1 "exec hcablk-hostile insistent $target_address 7744 vol1 $(host_id c1) /tmp/stop 2>&1"
must wait_until c2 60 "[ \$(hcablk-pr $device keys | cut -d: -f1) -ge 3 ]"
before=$(changed)
check "another host makes its changes" on c2 "for n in \$(seq $changes); do hcablk-pr $device ignore \$((20 + n)) || exit; done"
others=$(($(changed) - before - changes))
check "the insistent one has made some meanwhile ($others)" test "$others" -gt 0
check "but not more than three for each ($others)" test "$others" -le $((3 * changes))
must on c1 'touch /tmp/stop'
check "the insistent one was never refused" join insistent
same "both are registered" 2 "$(on c2 "hcablk-pr $device keys" | cut -d: -f2 | wc -w)"
must on c1 'rm /tmp/stop'
disconnect c2 vol1
must on target 'hcablk target unexport vol1 && umount /mnt/state && dmsetup remove kept'
