#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: an export with the write cache `through` answers writes only when they are on stable media, in every mode, and a drive whose cache is switched on during an export loses nothing either; clients follow the switch.
# turn: 13
# takes: 140
# guests: target c1
# timeout: 600
# skips: debug

. "${0%/*}/../lib/lib.sh"

# cache_of GUEST DISK: prints the block layer's view of the cache
cache_of() {
	on "$1" "cat /sys/block/$2/queue/write_cache"
}
# flushes: prints the number of flushes that the drive has completed
flushes() {
	on target "awk '{ print \$16 }' /sys/block/$drive_name/stat"
}
writes() {
	on c1 "dd if=/dev/zero of=$device bs=4k count=16 seek=64 oflag=direct conv=notrunc status=none"
}

# ---- through: the volatile drive loses its cache when the target is killed

add_volatile_drive
must on target "tr '\\0' x < /dev/zero | dd of=$volatile_drive bs=64k count=16 iflag=fullblock oflag=direct conv=fsync status=none"
volatile_name=$(on target "basename \$(readlink -f $volatile_drive)")
less "the volatile drive writes zeroes itself" 0 "$(on target "cat /sys/block/$volatile_name/queue/write_zeroes_max_bytes")"
# fill CHARACTER: writes 64 KiB in small and in large requests, and all are acknowledged.
fill() {
	on c1 "tr '\\0' $1 < /dev/zero | dd of=$device bs=4k count=8 iflag=fullblock oflag=direct conv=notrunc status=none &&
		tr '\\0' $1 < /dev/zero | dd of=$device bs=32k seek=1 count=1 iflag=fullblock oflag=direct conv=notrunc status=none"
}
# holds CHARACTER: succeeds if the drive holds them
holds() {
	on target "[ \$(dd if=$volatile_drive bs=64k count=1 iflag=direct status=none | tr -d $1 | wc -c) = 0 ]"
}
restart() {
	must vm kill target
	must vm start target
}

blank=1
for mode in direct cached mixed; do
	export_volume vol1 "$volatile_drive" --mode=$mode --write-cache=through c1
	connect c1 vol1
	same "$mode: clients see no volatile cache" "write through" "$(cache_of c1 "$disk")"
	character=${mode:0:1}
	must fill "$character"
	must on c1 "blkdiscard -z -o $((blank * 65536)) -l 65536 $device"
	restart
	check "$mode: acknowledged writes survive the target's power loss" holds "$character"
	same "$mode: acknowledged zeroes survive the target's power loss" 0 "$(on target "dd if=$volatile_drive bs=64k skip=$blank count=1 iflag=direct status=none | tr -d '\\0' | wc -c")"
	blank=$((blank + 1))
	must wait_until c1 60 "grep -q failed $initiator/vol1/state"
	must on c1 'hcablk disconnect vol1'
done
# A file on a file system of that drive.
must on target "modprobe ext4 && mkfs.ext4 -q -F $volatile_drive && mkdir -p /mnt/files && mount $volatile_drive /mnt/files &&
	truncate -s 16M /mnt/files/image && sync -f /mnt/files"
for mode in direct cached; do
	export_volume vol1 /mnt/files/image --mode=$mode --write-cache=through c1
	connect c1 vol1
	same "file, $mode: clients see no volatile cache" "write through" "$(cache_of c1 "$disk")"
	character=${mode:0:1}
	must fill "$character"
	restart
	must on target "modprobe ext4 && mkdir -p /mnt/files && mount $volatile_drive /mnt/files"
	check "file, $mode: acknowledged writes survive the target's power loss" on target "
		[ \$(dd if=/mnt/files/image bs=64k count=1 status=none | tr -d $character | wc -c) = 0 ]"
	must wait_until c1 60 "grep -q failed $initiator/vol1/state"
	must on c1 'hcablk disconnect vol1'
done
must on target 'umount /mnt/files'
export_volume vol1 "$volatile_drive" c1
connect c1 vol1
same "without \`through\` clients see a volatile cache" "write back" "$(cache_of c1 "$disk")"
must fill z
restart
refuse "without \`through\` acknowledged writes are lost: the drive has a volatile cache" holds z
must wait_until c1 60 "grep -q failed $initiator/vol1/state"
must on c1 'hcablk disconnect vol1'

# ---- a cache that is switched on and off

drive_name=$(on target "readlink $drive")
must on target "echo 'write through' > /sys/block/$drive_name/queue/write_cache"
export_volume vol2 "$drive" c1
connect c1 vol2 --ctrl-loss-tmo 600
same "a drive without a cache: clients see none" "write through" "$(cache_of c1 "$disk")"
before=$(flushes)
must writes
same "writes to a drive without a cache are not flushed" 0 $(($(flushes) - before))

# Until the client follows the switch, the target flushes for it: the client sends no flush.
stat_flushes() {
	stat_of target $target/volumes/vol2 flushes
}
sent=$(stat_flushes)
start_load writer c1 "$device" --bs=4k
flushed=0
for ((try = 1; try <= 8 && flushed == 0; try++)); do
	before=$(flushes)
	must on target "echo 'write back' > /sys/block/$drive_name/queue/write_cache"
	must wait_until c1 30 "grep -q 'write back' /sys/block/$disk/queue/write_cache"
	flushed=$(($(flushes) - before))
	must on target "echo 'write through' > /sys/block/$drive_name/queue/write_cache"
	check "switched off: the client follows, try $try" wait_until c1 30 "grep -q 'write through' /sys/block/$disk/queue/write_cache"
done
must on c1 'killall fio'
join writer || :
less "a cache that is switched on is flushed before writes are answered" 0 "$flushed"
same "the client has sent no flushes for it" "$sent" "$(stat_flushes)"

must on target "echo 'write back' > /sys/block/$drive_name/queue/write_cache"
check "switched on: the client follows" wait_until c1 30 "grep -q 'write back' /sys/block/$disk/queue/write_cache"
check "the client logs the cache that was switched on" in_log c1 "vol2: the volume now has a volatile write cache"
same "the client follows without a new connection" live "$(on c1 "cat $initiator/vol2/state")"
before=$(flushes)
must on c1 "dd if=/dev/zero of=$device bs=4k count=1 oflag=direct conv=notrunc,fsync status=none"
less "a flush of the client reaches the drive" "$before" "$(flushes)"
must on target "echo 'write through' > /sys/block/$drive_name/queue/write_cache"
check "switched off again: the client follows" wait_until c1 30 "grep -q 'write through' /sys/block/$disk/queue/write_cache"

# While the connection is lost the disk keeps its setting; it follows after reconnecting.
for becomes in 'write back' 'write through'; do
	must vm link-down target 0
	must wait_until c1 60 "grep -q queueing $initiator/vol2/state"
	must on target "echo '$becomes' > /sys/block/$drive_name/queue/write_cache"
	must vm link-up target 0
	check "switched to $becomes without a connection: the disk is connected again" wait_until c1 60 "grep -q live $initiator/vol2/state"
	check "switched to $becomes without a connection: the client follows" wait_until c1 30 "grep -q '$becomes' /sys/block/$disk/queue/write_cache"
done
disconnect c1 vol2
must on target "hcablk target unexport vol2; echo 'write back' > /sys/block/$drive_name/queue/write_cache"
