#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: when a host requests changes of reservations without a pause, over many sessions, a change of another host waits for a bounded number of them.
# turn: 2
# takes: 30
# waits: yes
# skips: siw
# timeout: 300

. "${0%/*}/../lib/lib.sh"

[ "$rdma" = rxe ] || skip "the hostile client's library speaks soft-RoCE only"

changes=6
# Writing a change takes this number of milliseconds, twice: longer than the other host needs to start a command, so that nearly
# always a request of its own waits.
delay=200
must on target "modprobe -a dm_mod dm_delay ext4 && printf '0 16384 delay $drive2 0 0 $drive2 0 $delay\n' | dmsetup create kept && dmsetup mknodes &&
	mkfs.ext4 -q -F -b 4096 -O ^has_journal /dev/mapper/kept && mkdir -p /mnt/state && mount /dev/mapper/kept /mnt/state &&
	$(keep /mnt/state/reservations) && modprobe hcablk_target && env echo /mnt/state/reservations > $target/reservations"
export_volume vol1 "$drive" --wwid=6f0c2b62-5f5e-4c0e-9d57-0b8f3e9b0b67 c1 c2
connect c2 vol1 --queues 1
# changed: prints the number of changes in all
changed() {
	on c2 "hcablk-pr $device keys" | cut -d: -f1
}
ON_SECONDS=250 spawn insistent c1 "exec hcablk-hostile insistent $target_address 7744 vol1 $(host_id c1) /tmp/stop 2>&1"
must wait_until c2 60 "[ \$(hcablk-pr $device keys | cut -d: -f1) -ge 3 ]"
before=$(changed)
check "another host makes its changes" on c2 "for n in \$(seq $changes); do hcablk-pr $device ignore \$((20 + n)) || exit; done"
others=$(($(changed) - before - changes))
check "the insistent host has made changes meanwhile ($others)" test "$others" -gt 0
check "the insistent host has made at most three for each of the other's ($others)" test "$others" -le $((3 * changes))
must on c1 'touch /tmp/stop'
check "the insistent host was never refused" join insistent
same "both hosts are registered" 2 "$(on c2 "hcablk-pr $device keys" | cut -d: -f2 | wc -w)"
must on c1 'rm /tmp/stop'
disconnect c2 vol1
must on target 'hcablk target unexport vol1 && umount /mnt/state && dmsetup remove kept'
