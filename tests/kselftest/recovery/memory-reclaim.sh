#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: a client short of memory, whose file system and swap are on the disk, survives an outage: every request succeeds, all data is right.
# turn: 6
# takes: 180
# waits: yes
# timeout: 2000

. "${0%/*}/../lib/lib.sh"

# Memory is short, and can be freed only through the disk: dirty pages of ext4, and swapped pages. During an outage the disk
# writes none of them, so reconnecting must not depend on that. It would if the code that ends a session, reconnects a disk or
# fences it allocated memory with I/O (GFP_KERNEL), which swaps out to the disk and waits for one of its tags; or without I/O
# (GFP_NOIO), but waiting until memory is free (the reason for for_reclaim(): seen once in two runs); or on a workqueue without a
# rescuer; or if issuing requests again allocated at all. Then the disk stays `queueing`. The injected bug `reclaim-waits` does
# the first. Test recovery/no-io-allocations lists the allocations.
tracing=/sys/kernel/tracing
# MiB: free memory when the writers begin, tmpfs before the outage, tmpfs during the outage, and each of two files
left=$((112 * slow)) swapped=$((96 * slow)) more=$((96 * slow)) written=$((32 * slow))

must on target "echo 'write through' > /sys/block/\$(basename \$(readlink -f $drive))/queue/write_cache
	echo 'write through' > /sys/block/\$(basename \$(readlink -f $drive2))/queue/write_cache"
export_volume files "$drive" c1
export_volume swap "$drive2" c1
# Few tags, so that swapping out soon waits for one.
options="--queue-depth 8 --ctrl-loss-tmo 600 --keep-alive-tmo $slow --reconnect-delay 1 --io-timeout $((30 * slow))"
connect c1 swap "$options"
swap=$device
connect c1 files "$options"
must on c1 "modprobe ext4; mkfs.ext4 -q -F -E lazy_itable_init=0 $device && mkdir -p /mnt/files && mount -t ext4 $device /mnt/files &&
	mkswap $swap && swapon $swap"
# Writing back starts with the first dirty page, and writers are not throttled.
must on c1 'echo 70 > /proc/sys/vm/dirty_ratio && echo 1 > /proc/sys/vm/dirty_background_ratio &&
	echo 100 > /proc/sys/vm/dirty_expire_centisecs && echo 100 > /proc/sys/vm/dirty_writeback_centisecs'
# Huge pages take memory out of use.
must on c1 "mkdir -p /tmp/hog && mount -t tmpfs -o size=$((swapped + more + 16))m none /tmp/hog && sync && echo 3 > /proc/sys/vm/drop_caches &&
	echo \$(((\$(awk '/MemAvailable/ { print \$2 }' /proc/meminfo) / 1024 - $left) / 2)) > /proc/sys/vm/nr_hugepages &&
	grep -E 'MemAvailable|MemFree|HugePages_Total' /proc/meminfo"
must on c1 "for event in direct_reclaim_begin direct_reclaim_end wakeup_kswapd; do echo 1 > $tracing/events/vmscan/mm_vmscan_\$event/enable; done && echo 1 > $tracing/events/hcablk/hcablk_disk/enable"
fill="for n in 1 2 3 4; do yes hog \$n | head -c $((swapped / 4))m > /tmp/hog/\$n || exit; done; cd /tmp/hog && sha256sum 1 2 3 4 > /tmp/sums"
ON_SECONDS=1000 must on c1 "$fill"
# Until /tmp/enough exists, swapped pages are read again, which swaps out others.
ON_SECONDS=2000 spawn hog c1 'cd /tmp/hog && until [ -e /tmp/enough ]; do sha256sum -c /tmp/sums > /dev/null || exit 1; done'
ON_SECONDS=2000 spawn writer c1 "fio --name=w --directory=/mnt/files --rw=randwrite --bsrange=4k-64k --size=${written}M --numjobs=2 \
	--fallocate=none --verify=crc32c --verify_fatal=1"
must wait_until c1 120 "awk '{ is[\$1] = \$2 } END { exit !(is[\"nr_dirtied\"] > 2000 && is[\"nr_writeback\"]) }' /proc/vmstat"
# When the outage begins a program needs more memory, which only swapping out can free.
ON_SECONDS=2000 spawn more c1 "dd if=/dev/zero of=/tmp/hog/more bs=64k count=$((more * 16))"
must vm link-down target 0
# From here on only the client's log is read: its programs may wait for the disk.
for volume in files swap; do
	check "$volume: the connection is lost" wait_log c1 60 "$volume: connection lost: .* wait for a new connection"
done
end=$(on target "awk '{ print int(\$1) + 12 * $slow }' /proc/uptime")
must wait_until target 60 "[ \$(cut -d. -f1 /proc/uptime) -ge $end ]"
must vm link-up target 0
for volume in files swap; do
	wait_log c1 $((60 * slow)) "$volume: connection restored" >&2 || {
		# The log on the console then shows what its workers wait for.
		ON_SECONDS=20 on c1 "cat $initiator/$volume/state $initiator/$volume/error /proc/meminfo; echo t > /proc/sysrq-trigger" >&2
		die "$volume: the disk is live again"
	}
	pass "$volume: the disk is live again"
done
# The rest may run with enough memory.
must on c1 'echo 0 > /proc/sys/vm/nr_hugepages && touch /tmp/enough'
check "the written data is read back" join writer
check "the swapped data is right" join hog
check "the program that needed memory has got it" join more
# Counts allocations that found too little memory while a disk waited, or that began before and had not ended. The states of the
# disks give the times; the first word is the task.
read -r during swaps <<< "$(on c1 "awk '
	/reclaim_begin:/ { reclaims[\$1] = 1 }
	/reclaim_end:/ { delete reclaims[\$1] }
	/hcablk_disk:.* state=queueing/ { waits++; for (task in reclaims) n++ }
	/hcablk_disk:.* state=live/ { waits-- }
	/(reclaim_begin|wakeup_kswapd):/ && waits > 0 { n++ }
	END { print n + 0 }' $tracing/trace; awk '/^pswpout/ { print \$2 }' /proc/vmstat" | xargs)"
echo "# $during allocations found too little memory during the outage, $swaps pages were swapped out in all"
less "memory was short during the outage" 0 "$during"
must on c1 "echo 0 > $tracing/events/enable && echo > $tracing/trace"
check "the files are right after their pages were dropped" on c1 "echo 3 > /proc/sys/vm/drop_caches && fio --name=w --directory=/mnt/files \
	--rw=randwrite --bsrange=4k-64k --size=${written}M --numjobs=1 --verify=crc32c --verify_fatal=1 --verify_only"
must on c1 "cd / && umount /mnt/files /tmp/hog && swapoff $swap"
check "the file system is sound" on c1 "e2fsck -fn $device"
for volume in files swap; do
	same "$volume: no request has failed" 0 "$(stat_of c1 $initiator/$volume errors)"
	disconnect c1 $volume
done
silent "no program was killed, and no allocation failed" on c1 "dmesg | grep -E 'Out of memory|oom-kill|allocation failure|blocked (for more|in I/O)' || true"
must on c1 'rm -f /tmp/enough /tmp/sums'
