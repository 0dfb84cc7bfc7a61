#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: a disk follows when its drive supports fewer or more discards after a lost connection; zoned drives and drives with large blocks are refused with one clear message.
# turn: 15
# takes: 30
# guests: target c1
# timeout: 480

. "${0%/*}/../lib/lib.sh"

size=$(on target "blockdev --getsz $drive")
must on target "modprobe dm_mod && printf '0 $size linear $drive 0\n' | dmsetup create thin && dmsetup mknodes"
thin=$(on target 'dmsetup info -c --noheadings -o blkdevname thin')
export_volume vol1 "/dev/$thin" c1
connect c1 vol1 --ctrl-loss-tmo 600
# limit NAME: prints a limit of the client's disk
limit() {
	on c1 "cat /sys/block/$disk/queue/$1"
}
less "the disk supports discards" 0 "$(limit discard_max_bytes)"
must on c1 "mkfs.ext4 -q -F $device && mkdir -p /mnt && mount $device /mnt"

# becomes WHAT COMMAND: changes the target's drive while the connection is lost.
becomes() {
	must vm link-down target 0
	must wait_until c1 60 "grep -q queueing $initiator/vol1/state"
	must on target "$2"
	# The write waits for the connection, and is issued before the disk follows.
	spawn written c1 "dd if=/dev/zero of=/mnt/file bs=64k count=4 conv=fsync"
	must vm link-up target 0
	check "$1: the disk is connected again" wait_until c1 60 "grep -q live $initiator/vol1/state"
	check "$1: a write from meanwhile succeeds" join written
}
becomes 'without discards' "echo 0 > /sys/block/$thin/queue/discard_max_bytes"
check "the disk stops supporting discards" wait_until c1 30 "grep -qx 0 /sys/block/$disk/queue/discard_max_bytes"
check "the log has the new discard limit" in_log c1 "vol1: the volume now accepts discards of 0 KiB"
check "the file system still writes" on c1 'dd if=/dev/zero of=/mnt/file bs=64k count=4 conv=fsync && sync'
refuse "a discard is refused" on c1 'fstrim /mnt'
becomes 'with discards' "dmsetup suspend thin && printf '0 $size linear $drive 0\n' | dmsetup load thin && dmsetup resume thin"
check "the disk supports discards again" wait_until c1 30 "grep -qvx 0 /sys/block/$disk/queue/discard_max_bytes"
check "the file system discards again" on c1 'fstrim /mnt && umount /mnt'
disconnect c1 vol1
must on target 'hcablk target unexport vol1 && dmsetup remove thin'

# refused OPTIONS "MESSAGE": checks that a null_blk with these options is refused with the message.
refused() {
	local options=$1 message=$2 said
	must on target "modprobe null_blk nr_devices=0 && mkdir /sys/kernel/config/nullb/odd && cd /sys/kernel/config/nullb/odd &&
		echo 64 > size && for option in $options; do echo \${option#*=} > \${option%=*} || exit; done && echo 1 > power"
	said=$(on target 'hcablk target export odd /dev/odd --insecure 2>&1') && fail "$message: the drive is exported"
	like "the drive is refused: $message" "$message" "$said"
	silent "$message: no volume is left" on target "ls $target/volumes 2> /dev/null"
	must on target 'echo 0 > /sys/kernel/config/nullb/odd/power && rmdir /sys/kernel/config/nullb/odd'
}
refused "memory_backed=1 zoned=1 zone_size=4" "zoned drives cannot be exported"
refused "memory_backed=1 blocksize=8192" "its logical blocks are larger than 4096 bytes"
