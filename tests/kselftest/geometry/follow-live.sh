#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: a disk in use follows each limit of its drive without a new connection, even while its queue's attributes are written; a request that the drive rejects ends as not supported.
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
# becomes NAME VALUE: waits until this limit of the client's disk has the value
becomes() {
	wait_until c1 30 "grep -qx '$2' /sys/block/$disk/queue/$1"
}
must on c1 "mkfs.ext4 -q -F $device && mkdir -p /mnt && mount $device /mnt"
must on c1 "echo 4 > /sys/block/$disk/queue/read_ahead_kb"
less "the disk supports discards" 0 "$(limit discard_max_bytes)"
same "the disk has no preferred I/O size" 0 "$(limit optimal_io_size)"

must on target "echo 0 > /sys/block/$thin/queue/discard_max_bytes"
check "the disk stops supporting discards" becomes discard_max_bytes 0
check "the log has the new discard limit" wait_log c1 10 "vol1: the volume now accepts discards of 0 KiB"
same "the configured read-ahead is kept" 4 "$(limit read_ahead_kb)"
check "the file system still writes" on c1 'dd if=/dev/zero of=/mnt/file bs=64k count=4 conv=fsync'
refuse "a discard is refused" on c1 'fstrim /mnt'
must on target "dmsetup suspend thin && printf '0 $size linear $drive 0\n' | dmsetup load thin && dmsetup resume thin"
check "the disk supports discards again" wait_until c1 30 "grep -qvx 0 /sys/block/$disk/queue/discard_max_bytes"
check "the file system discards again" on c1 'fstrim /mnt && umount /mnt'

# While a request waits for the connection, writers of queue attributes wait for the request and hold the lock of the limits.
must vm link-down target 0
must wait_until c1 60 "grep -q queueing $initiator/vol1/state"
spawn written c1 "dd if=/dev/zero of=$device bs=64k count=4 oflag=direct"
must wait_until c1 30 'grep -q "(dd) D" /proc/[0-9]*/stat'
spawn sectors c1 "echo 64 > /sys/block/$disk/queue/max_sectors_kb"
spawn cache c1 "echo 'write through' > /sys/block/$disk/queue/write_cache"
must on target "dmsetup suspend thin && printf '$striped\n' | dmsetup load thin && dmsetup resume thin"
must vm link-up target 0
check "the waiting write succeeds" join written
check "the writer of max_sectors_kb ends" join sectors
check "the writer of write_cache ends" join cache
check "the disk's optimal I/O size is that of the stripes" becomes optimal_io_size 262144
check "the disk's minimum I/O size is one chunk" becomes minimum_io_size 131072
same "the configured max_sectors_kb is kept" 64 "$(limit max_sectors_kb)"
must on target "dmsetup suspend thin && printf '0 $size linear $drive 0\n' | dmsetup load thin && dmsetup resume thin"
check "the disk's optimal I/O size follows back without a new connection" becomes optimal_io_size 0
disconnect c1 vol1
must on target 'hcablk target unexport vol1 && dmsetup remove thin'

# A drive that is busy for longer than the queue may stay frozen.
must on target "modprobe dm_delay && printf '0 $size delay $drive 0 $((1000 * slow))\n' | dmsetup create thin && dmsetup mknodes"
thin=$(on target 'dmsetup info -c --noheadings -o blkdevname thin')
export_volume slow "/dev/$thin" c1
connect c1 slow
less "the slow disk supports discards" 0 "$(limit discard_max_bytes)"
spawn busy c1 "for n in 1 2 3 4; do dd if=$device of=/dev/null bs=4k count=1 skip=\$n iflag=direct || exit; done"
must wait_until c1 30 'grep -q "(dd) D" /proc/[0-9]*/stat'
must on target "echo 0 > /sys/block/$thin/queue/discard_max_bytes"
check "the disk of a busy drive stops supporting discards" becomes discard_max_bytes 0
check "the reader of the busy drive sees no error" join busy
check "the block layer gets the new discard limit in the end" wait_log c1 60 "slow: the volume now accepts discards of 0 KiB"
disconnect c1 slow
must on target 'hcablk target unexport slow && dmsetup remove thin'

# A drive that rejects commands that it offered, and withdraws the offer: sense 5/20/00.
must on target "modprobe scsi_debug dev_size_mb=64 lbpu=1 lbpws=0 delay=0 &&
	until name=\$(ls /sys/bus/pseudo/drivers/scsi_debug/adapter0/host*/target*/*/block) && [ -b /dev/\$name ]; do usleep 50000; done 2> /dev/null
	ln -s \$name /dev/scsi"
scsi=/dev/$(on target 'readlink /dev/scsi')
errors=/sys/kernel/debug/scsi_debug/$(on target "basename \$(readlink /sys/block/${scsi#/dev/}/device)")/error
export_volume refuses "$scsi" c1
connect c1 refuses
less "the SCSI disk supports writes of zeroes" 0 "$(limit write_zeroes_max_bytes)"
less "the SCSI disk supports discards" 0 "$(limit discard_max_bytes)"
must on c1 "tr '\\0' x < /dev/zero | dd of=$device bs=1M count=2 iflag=fullblock oflag=direct"
must on target "for command in 41 93 42; do echo 2 -1 \$command 0 0 2 5 20 0 > $errors || exit; done"
check "blkdiscard -z falls back to writing zeroes as data" on c1 "blkdiscard -f -z -l 1M $device"
same "the disk reads as zeroes" "$(head -c 1M /dev/zero | sha256sum)" "$(on c1 "dd if=$device bs=1M count=1 iflag=direct | sha256sum")"
check "the disk stops supporting writes of zeroes" becomes write_zeroes_max_bytes 0
# blkdev_issue_discard() ignores a discard that is not supported, and would return the drive's own error.
check "a rejected discard is ignored" on c1 "blkdiscard -f -o 1M -l 1M $device"
check "the disk stops supporting discards of the SCSI drive" becomes discard_max_bytes 0
output=$(on c1 "blkdiscard -f -o 1M -l 1M $device 2>&1") && fail "a discard succeeds although the drive rejects it"
like "the next discard is not supported" "Operation not supported" "$output"
must on target "for command in 41 93 42; do echo - 2 \$command > $errors || exit; done"
same "the client has no protocol errors" 0 "$(stat_of c1 $initiator/refuses protocol_errors)"
disconnect c1 refuses
must on target 'hcablk target unexport refuses && rm /dev/scsi && rmmod scsi_debug'
