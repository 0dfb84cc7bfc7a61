#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: a client that is short of memory, whose file system and swap are on the disk, outlives an outage: all is done, all data is right.
# turn: 6
# takes: 180
# waits: yes
# timeout: 2000

. "${0%/*}/../lib/lib.sh"

# Memory is short, and what could be freed can be freed only through the disk: dirty pages of ext4, and what is swapped out. Over an
# outage none of that goes out, and the way back must not need it. It would if whoever ends a session, connects a disk again or
# fences it allocated memory with I/O (GFP_KERNEL), since that swaps out to the disk and waits for one of its tags; or without I/O
# (GFP_NOIO), but waited until there is memory (that is what for_reclaim() is for: seen once in two runs); or on a workqueue without
# a rescuer; or if issuing requests again allocated at all. Then the disk stays `queueing`. The injected bug `reclaim-waits` does
# the first. Test recovery/no-io-allocations says which allocations there are.
tracing=/sys/kernel/tracing
# MiB that are left when the disks' writers begin, in tmpfs before the outage and in it, and in each of two files
left=$((112 * slow)) swapped=$((96 * slow)) more=$((96 * slow)) written=$((32 * slow))

must on target "echo 'write through' > /sys/block/\$(basename \$(readlink -f $drive))/queue/write_cache
	echo 'write through' > /sys/block/\$(basename \$(readlink -f $drive2))/queue/write_cache"
export_volume files "$drive" c1
export_volume swap "$drive2" c1
# Few tags, so that who swaps out waits for one soon.
options="--queue-depth 8 --ctrl-loss-tmo 600 --keep-alive-tmo $slow --reconnect-delay 1 --io-timeout $((30 * slow))"
connect c1 swap "$options"
swap=$device
connect c1 files "$options"
must on c1 "modprobe ext4; mkfs.ext4 -q -F -E lazy_itable_init=0 $device && mkdir -p /mnt/files && mount -t ext4 $device /mnt/files &&
	mkswap $swap && swapon $swap"
# Pages may be dirty as long as there are any, and are written back from the first on.
must on c1 'echo 70 > /proc/sys/vm/dirty_ratio && echo 1 > /proc/sys/vm/dirty_background_ratio &&
	echo 100 > /proc/sys/vm/dirty_expire_centisecs && echo 100 > /proc/sys/vm/dirty_writeback_centisecs'
# Huge pages are memory that nobody can have.
must on c1 "mkdir -p /tmp/hog && mount -t tmpfs -o size=$((swapped + more + 16))m none /tmp/hog && sync && echo 3 > /proc/sys/vm/drop_caches &&
	echo \$(((\$(awk '/MemAvailable/ { print \$2 }' /proc/meminfo) / 1024 - $left) / 2)) > /proc/sys/vm/nr_hugepages &&
	grep -E 'MemAvailable|MemFree|HugePages_Total' /proc/meminfo"
must on c1 "for event in direct_reclaim_begin direct_reclaim_end wakeup_kswapd; do echo 1 > $tracing/events/vmscan/mm_vmscan_\$event/enable; done && echo 1 > $tracing/events/hcablk/hcablk_disk/enable"
fill="for n in 1 2 3 4; do yes hog \$n | head -c $((swapped / 4))m > /tmp/hog/\$n || exit; done; cd /tmp/hog && sha256sum 1 2 3 4 > /tmp/sums"
ON_SECONDS=1000 must on c1 "$fill"
# Until /tmp/enough is there what was swapped out is read in, and so other things are swapped out.
ON_SECONDS=2000 spawn hog c1 'cd /tmp/hog && until [ -e /tmp/enough ]; do sha256sum -c /tmp/sums > /dev/null || exit 1; done'
ON_SECONDS=2000 spawn writer c1 "fio --name=w --directory=/mnt/files --rw=randwrite --bsrange=4k-64k --size=${written}M --numjobs=2 \
	--fallocate=none --verify=crc32c --verify_fatal=1"
must wait_until c1 120 "awk '{ is[\$1] = \$2 } END { exit !(is[\"nr_dirtied\"] > 2000 && is[\"nr_writeback\"]) }' /proc/vmstat"
# When the outage begins more memory is wanted, which only swapping out can give.
ON_SECONDS=2000 spawn more c1 "dd if=/dev/zero of=/tmp/hog/more bs=64k count=$((more * 16))"
must vm link-down target 0
# From here on nothing is asked of the client but by its log: its programs may wait for the disk.
for volume in files swap; do
	check "$volume: it is lost" wait_log c1 60 "$volume: connection lost: .* wait for another"
done
end=$(on target "awk '{ print int(\$1) + 12 * $slow }' /proc/uptime")
must wait_until target 60 "[ \$(cut -d. -f1 /proc/uptime) -ge $end ]"
must vm link-up target 0
for volume in files swap; do
	wait_log c1 $((60 * slow)) "$volume: connected again" >&2 || {
		# What its workers wait for is in the console's log.
		ON_SECONDS=20 on c1 "cat $initiator/$volume/state $initiator/$volume/error /proc/meminfo; echo t > /proc/sysrq-trigger" >&2
		die "$volume: it is back"
	}
	pass "$volume: it is back"
done
# The rest may be quick.
must on c1 'echo 0 > /proc/sys/vm/nr_hugepages && touch /tmp/enough'
check "what was written is read" join writer
check "so is what was swapped out" join hog
check "who wanted memory meanwhile has it" join more
# Allocations that found too little memory while a disk waited, or before that and were no further; the moments are those of the
# states, the first word is the task.
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
check "the files are right after their pages are dropped" on c1 "echo 3 > /proc/sys/vm/drop_caches && fio --name=w --directory=/mnt/files \
	--rw=randwrite --bsrange=4k-64k --size=${written}M --numjobs=1 --verify=crc32c --verify_fatal=1 --verify_only"
must on c1 "cd / && umount /mnt/files /tmp/hog && swapoff $swap"
check "the file system is sound" on c1 "e2fsck -fn $device"
for volume in files swap; do
	same "$volume: no request has failed" 0 "$(stat_of c1 $initiator/$volume errors)"
	disconnect c1 $volume
done
silent "nobody was killed, no allocation failed" on c1 "dmesg | grep -E 'Out of memory|oom-kill|allocation failure|blocked (for more|in I/O)' || true"
must on c1 'rm -f /tmp/enough /tmp/sums'
