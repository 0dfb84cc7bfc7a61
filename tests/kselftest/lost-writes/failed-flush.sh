#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: when a drive fails a flush, one flush of each writer of that drive fails, also of other hosts and other volumes; a failed FUA write concerns only its writer if the drive has FUA.
# tier: heart
# turn: 1
# takes: 25
# guests: target c1 c2
# skips: debug

. "${0%/*}/../lib/lib.sh"

on target 'modprobe sd_mod' || skip "the kernel has no SCSI"
must on target "modprobe dm_mod && modprobe scsi_debug dev_size_mb=64 num_parts=2 delay=0 &&
	until name=\$(ls /sys/bus/pseudo/drivers/scsi_debug/adapter0/host*/target*/*/block) && [ -b /dev/\${name}2 ]; do usleep 50000; done 2> /dev/null
	ln -s \$name /dev/scsi"
scsi=/dev/$(on target 'readlink /dev/scsi')
errors=/sys/kernel/debug/scsi_debug/$(on target "basename \$(readlink /sys/block/${scsi#/dev/}/device)")/error
# fails COMMAND: lets the drive's next SCSI command of this kind fail with a medium error, which the kernel does not retry.
fails() {
	must on target "echo 2 -1 $1 0 0 2 3 11 0 > $errors"
}
write() {
	on "$1" "dd if=/dev/zero of=$2 bs=4k count=4 oflag=direct 2> /dev/null"
}
flush() {
	on "$1" "dd if=/dev/null of=$2 conv=notrunc,fsync 2> /dev/null"
}
flush_command=35 write_command=2a
same "the drive has FUA" 1 "$(on target "cat /sys/block/${scsi#/dev/}/queue/fua")"

for mode in direct cached; do
	export_volume vol1 "${scsi}1" --mode=$mode c1 c2
	export_volume beside "${scsi}2" --mode=$mode c2
	connect c1 vol1
	own=$device
	connect c2 vol1
	same "$mode: the disk has a write cache" "write back" "$(on c2 "cat /sys/block/$disk/queue/write_cache")"
	other=$device
	connect c2 beside
	beside=$device
	check "$mode: a host writes" write c1 "$own"
	check "$mode: another host writes" write c2 "$other"
	check "$mode: the other host writes to another part of the drive" write c2 "$beside"
	fails $flush_command
	refuse "$mode: a flush fails" flush c1 "$own"
	refuse "$mode: the next flush of the other host fails" flush c2 "$other"
	refuse "$mode: the next flush of the other part of the drive fails" flush c2 "$beside"
	check "$mode: a second flush succeeds" flush c1 "$own"
	check "$mode: a second flush of the other host succeeds" flush c2 "$other"
	check "$mode: a second flush of the other part succeeds" flush c2 "$beside"
	disconnect c2 beside
	disconnect c2 vol1
	disconnect c1 vol1
	must on target 'hcablk target unexport --all'
done

export_volume vol1 "${scsi}1" c1 c2
connect c2 vol1
other=$device
connect c1 vol1
fails $write_command
refuse "a FUA write fails" on c1 "dd if=/dev/zero of=$device bs=4k count=1 oflag=direct,dsync"
check "a flush after the failed FUA write succeeds" flush c1 "$device"
check "a flush of the other host succeeds" flush c2 "$other"
disconnect c1 vol1
disconnect c2 vol1
must on target 'hcablk target unexport vol1'

# A write that is refused for want of space is not a failed flush.
must on target "modprobe ext4 && mkfs.ext4 -q -F ${scsi}2 && mkdir -p /mnt/files && mount ${scsi}2 /mnt/files && truncate -s 1G /mnt/files/sparse"
export_volume vol1 "${scsi}1" c1
export_volume full /mnt/files/sparse c1
connect c1 vol1
own=$device
connect c1 full
like "a write to a full file system fails" "No space left" "$(on c1 "dd if=/dev/zero of=$device bs=1M count=48 oflag=direct,dsync 2>&1")"
like "a second write to a full file system fails" "No space left" "$(on c1 "dd if=/dev/zero of=$device bs=1M seek=40 count=4 oflag=direct,dsync 2>&1")"
check "a flush of another volume of the drive succeeds" flush c1 "$own"
disconnect c1 full
disconnect c1 vol1
must on target 'hcablk target unexport full && hcablk target unexport vol1 && umount /mnt/files'

# Device-mapper reports FUA regardless of the drive below.
must on target "printf '0 32768 linear ${scsi}1 0\n' | dmsetup create above && dmsetup mknodes"
export_volume vol1 /dev/mapper/above c1 c2
connect c2 vol1
other=$device
connect c1 vol1
fails $write_command
refuse "behind dm: a FUA write fails" on c1 "dd if=/dev/zero of=$device bs=4k count=1 oflag=direct,dsync"
refuse "behind dm: the next flush fails, since a flush below may have failed" flush c1 "$device"
refuse "behind dm: the next flush of the other host fails" flush c2 "$other"
check "behind dm: a second flush succeeds" flush c1 "$device"
check "behind dm: a second flush of the other host succeeds" flush c2 "$other"
disconnect c1 vol1
disconnect c2 vol1
must on target "hcablk target unexport vol1 && dmsetup remove above && rm /dev/scsi && rmmod scsi_debug"
