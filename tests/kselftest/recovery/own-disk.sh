#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: a host that uses its own volume in mode cached, and dirties twice as many pages as it has memory, finishes, even when its connection is lost and volumes are exported and removed meanwhile.
# turn: 16
# guests: target
# waits: yes
# takes: 20
# timeout: 1200

. "${0%/*}/../lib/lib.sh"

# Memory reclaim waits for the disk, the disk waits for the fence of its lost session, and the fence waits for locks of the target
# that exporting a volume holds: all of these must allocate without I/O, or they deadlock.
left=$((96 * slow)) written=$((2 * left))
must on target "modprobe ext4; mkfs.ext4 -q -F $drive && mkdir -p /mnt/volumes && mount $drive /mnt/volumes && truncate -s ${written}M /mnt/volumes/own"
export_volume own /mnt/volumes/own --mode=cached target
connect target own --queue-depth 32 --ctrl-loss-tmo 600 --reconnect-delay 1
netdev=$(on target "rdma link show" | sed -n "s/^link $rdma_link\\/1 .*netdev \\([^ ]*\\).*/\\1/p")
must on target 'echo 70 > /proc/sys/vm/dirty_ratio && echo 1 > /proc/sys/vm/dirty_background_ratio'
# Huge pages take memory out of use.
must on target "sync && echo 3 > /proc/sys/vm/drop_caches &&
	echo \$(((\$(awk '/MemAvailable/ { print \$2 }' /proc/meminfo) / 1024 - $left) / 2)) > /proc/sys/vm/nr_hugepages &&
	grep -E 'MemAvailable|MemFree' /proc/meminfo"
ON_SECONDS=900 spawn writer target "dd if=/dev/zero bs=64k count=$((written * 16)) | tr '\\0' 'x' > $device; sync $device"
ON_SECONDS=900 spawn exports target "modprobe brd rd_nr=1 rd_size=4096; n=0
	until [ -e /tmp/enough ]; do
		n=\$((n + 1))
		mkdir $target/volumes/v\$n && cd $target/volumes/v\$n && echo /dev/ram0 > path && echo 1 > enable && mkdir hosts/\$(cat /proc/sys/kernel/random/uuid) &&
			rmdir hosts/* && echo 0 > enable && cd / && rmdir $target/volumes/v\$n || exit
	done; echo \$n volumes >&2"
must wait_until target 120 "awk '{ is[\$1] = \$2 } END { exit !(is[\"nr_dirtied\"] > 5000) }' /proc/vmstat"
for turn in 1 2; do
	must on target "rdma link delete $rdma_link"
	check "$turn: the connection is lost" wait_until target 60 "[ \$(cat $initiator/own/state) != live ]"
	must on target "rdma link add $rdma_link type $rdma netdev $netdev"
	check "$turn: the disk is live again, though memory is short" wait_until target 120 "[ \$(cat $initiator/own/state) = live ]"
done
check "all data is written" join writer
must on target 'touch /tmp/enough'
check "volumes were exported meanwhile" join exports
must on target 'echo 0 > /proc/sys/vm/nr_hugepages && rm /tmp/enough'
same "the written data is right" 0 "$(on target "tr -d x < $device | wc -c")"
same "no request has failed" 0 "$(stat_of target $initiator/own errors)"
disconnect target own
must on target 'hcablk target unexport own && umount /mnt/volumes'
