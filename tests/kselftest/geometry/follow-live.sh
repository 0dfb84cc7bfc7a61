#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: a disk in use follows each limit of its drive without a new connection, whoever writes to its queue's attributes meanwhile; what the drive refuses is not supported.
# turn: 3
# takes: 40
# guests: target c1
# skips: debug
# timeout: 600

. "${0%/*}/../lib/lib.sh"

on target 'modprobe sd_mod' || skip "the kernel has no SCSI"
size=819200
striped="0 $size striped 2 256 $drive 0 $drive2 0"
must on target "modprobe dm_mod && printf '0 $size linear $drive 0\n' | dmsetup create thin && dmsetup mknodes"
thin=$(on target 'dmsetup info -c --noheadings -o blkdevname thin')
export_volume vol1 "/dev/$thin" c1
connect c1 vol1 --ctrl-loss-tmo 600
limit() {
	on c1 "cat /sys/block/$disk/queue/$1"
}
# becomes NAME VALUE: this limit of the client's disk
becomes() {
	wait_until c1 30 "grep -qx '$2' /sys/block/$disk/queue/$1"
}
must on c1 "mkfs.ext4 -q -F $device && mkdir -p /mnt && mount $device /mnt"
must on c1 "echo 4 > /sys/block/$disk/queue/read_ahead_kb"
less "the drive takes discards" 0 "$(limit discard_max_bytes)"
same "it has no preferred I/O" 0 "$(limit optimal_io_size)"

must on target "echo 0 > /sys/block/$thin/queue/discard_max_bytes"
check "without discards: the disk follows" becomes discard_max_bytes 0
check "it says so" wait_log c1 10 "vol1: the volume takes discards of 0 KiB"
same "the read-ahead that was set is kept" 4 "$(limit read_ahead_kb)"
check "the file system writes on" on c1 'dd if=/dev/zero of=/mnt/file bs=64k count=4 conv=fsync'
refuse "nothing is discarded" on c1 'fstrim /mnt'
must on target "dmsetup suspend thin && printf '0 $size linear $drive 0\n' | dmsetup load thin && dmsetup resume thin"
check "with discards again: the disk follows" wait_until c1 30 "grep -qvx 0 /sys/block/$disk/queue/discard_max_bytes"
check "and discards" on c1 'fstrim /mnt && umount /mnt'

# While a request waits for the connection, whoever changes the queue's attributes waits for it with the lock of the limits.
must vm link-down target 0
must wait_until c1 60 "grep -q queueing $initiator/vol1/state"
spawn written c1 "dd if=/dev/zero of=$device bs=64k count=4 oflag=direct"
must wait_until c1 30 'grep -q "(dd) D" /proc/[0-9]*/stat'
spawn sectors c1 "echo 64 > /sys/block/$disk/queue/max_sectors_kb"
spawn cache c1 "echo 'write through' > /sys/block/$disk/queue/write_cache"
must on target "dmsetup suspend thin && printf '$striped\n' | dmsetup load thin && dmsetup resume thin"
must vm link-up target 0
check "who wrote goes on" join written
check "so does who set max_sectors_kb" join sectors
check "and who set write_cache" join cache
check "the disk prefers what the stripes do" becomes optimal_io_size 262144
check "at least a chunk" becomes minimum_io_size 131072
same "what was set is kept" 64 "$(limit max_sectors_kb)"
must on target "dmsetup suspend thin && printf '0 $size linear $drive 0\n' | dmsetup load thin && dmsetup resume thin"
check "and back, without a new connection" becomes optimal_io_size 0
disconnect c1 vol1
must on target 'hcablk target unexport vol1 && dmsetup remove thin'

# Behind a drive that is never idle for as long as the freeze may take.
must on target "modprobe dm_delay && printf '0 $size delay $drive 0 $((1000 * slow))\n' | dmsetup create thin && dmsetup mknodes"
thin=$(on target 'dmsetup info -c --noheadings -o blkdevname thin')
export_volume slow "/dev/$thin" c1
connect c1 slow
less "the slow drive takes discards" 0 "$(limit discard_max_bytes)"
spawn busy c1 "for n in 1 2 3 4; do dd if=$device of=/dev/null bs=4k count=1 skip=\$n iflag=direct || exit; done"
must wait_until c1 30 'grep -q "(dd) D" /proc/[0-9]*/stat'
must on target "echo 0 > /sys/block/$thin/queue/discard_max_bytes"
check "discards are taken away while the drive is busy" becomes discard_max_bytes 0
check "who reads does not notice" join busy
check "in the end the block layer knows all" wait_log c1 60 "slow: the volume takes discards of 0 KiB"
disconnect c1 slow
must on target 'hcablk target unexport slow && dmsetup remove thin'

# A drive that refuses what it has offered, and takes the offer back: sense 5/20/00.
must on target "modprobe scsi_debug dev_size_mb=64 lbpu=1 lbpws=0 delay=0 &&
	until name=\$(ls /sys/bus/pseudo/drivers/scsi_debug/adapter0/host*/target*/*/block) && [ -b /dev/\$name ]; do usleep 50000; done 2> /dev/null
	ln -s \$name /dev/scsi"
scsi=/dev/$(on target 'readlink /dev/scsi')
errors=/sys/kernel/debug/scsi_debug/$(on target "basename \$(readlink /sys/block/${scsi#/dev/}/device)")/error
export_volume refuses "$scsi" c1
connect c1 refuses
less "the SCSI disk writes zeroes" 0 "$(limit write_zeroes_max_bytes)"
less "and discards" 0 "$(limit discard_max_bytes)"
must on c1 "tr '\\0' x < /dev/zero | dd of=$device bs=1M count=2 iflag=fullblock oflag=direct"
must on target "for command in 41 93 42; do echo 2 -1 \$command 0 0 2 5 20 0 > $errors || exit; done"
check "zeroes are written in another way" on c1 "blkdiscard -f -z -l 1M $device"
same "they are there" "$(head -c 1M /dev/zero | sha256sum)" "$(on c1 "dd if=$device bs=1M count=1 iflag=direct | sha256sum")"
check "the disk writes none any more by itself" becomes write_zeroes_max_bytes 0
# blkdev_issue_discard() does without one that is not supported; what the drive says would be an error.
check "a discard is done without" on c1 "blkdiscard -f -o 1M -l 1M $device"
check "the disk discards no more" becomes discard_max_bytes 0
output=$(on c1 "blkdiscard -f -o 1M -l 1M $device 2>&1") && fail "a discard succeeds"
like "the next discard is not supported" "Operation not supported" "$output"
must on target "for command in 41 93 42; do echo - 2 \$command > $errors || exit; done"
same "no protocol error" 0 "$(stat_of c1 $initiator/refuses protocol_errors)"
disconnect c1 refuses
must on target 'hcablk target unexport refuses && rm /dev/scsi && rmmod scsi_debug'
