#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: an export that ends in order right after a notice, before its client watches again, loses no write: the next flush succeeds.
# turn: 3
# takes: 15
# waits: yes

. "${0%/*}/../lib/lib.sh"

must on target "modprobe dm_mod && printf '0 131072 linear $drive 0\n' | dmsetup create grows && dmsetup mknodes"
grows=/dev/$(on target 'dmsetup info -c --noheadings -o blkdevname grows')
export_volume vol1 "$grows" c1
connect c1 vol1 --ctrl-loss-tmo 600
same "the drive has a volatile write cache" "write back" "$(on c1 "cat /sys/block/$disk/queue/write_cache")"
# The first watch has arrived before this.
must on target "dmsetup suspend grows && printf '0 262144 linear $drive 0\n' | dmsetup load grows && dmsetup resume grows"
must wait_until c1 20 "[ \$(cat /sys/block/$disk/size) = 262144 ]"
must on c1 "dd if=/dev/zero of=$device bs=64k count=1 oflag=direct conv=notrunc"
# The client's packets are so late that the export ends before the next watch arrives.
card=$(on c1 "rdma link show | sed -n 's/.* netdev \\([^ ]*\\).*/\\1/p' | head -n 1")
must netem c1 "$card" delay 700ms
must on target "dmsetup suspend grows && printf '0 393216 linear $drive 0\n' | dmsetup load grows && dmsetup resume grows"
must wait_until c1 20 "[ \$(cat /sys/block/$disk/size) = 393216 ]"
must on target 'hcablk target unexport --force vol1'
must netem c1 "$card"
must wait_until c1 60 "grep -q queueing $initiator/vol1/state"
export_volume vol1 "$grows" c1
check "the volume is exported again: the disk is live again" wait_until c1 60 "grep -q live $initiator/vol1/state"
same "the disk has no lost writes" 0 "$(on c1 "cat $initiator/vol1/lost_writes")"
check "a flush succeeds" on c1 "dd if=/dev/null of=$device conv=fsync,notrunc"
disconnect c1 vol1
must on target 'hcablk target unexport vol1 && dmsetup remove grows'
