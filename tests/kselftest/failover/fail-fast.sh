#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: while no path is live, requests with failfast flags (of md with failfast, of dm-mpath) fail at once, and other requests wait.
# tier: heart
# turn: 0
# takes: 10
# guests: target c1
# timeout: 480

. "${0%/*}/../lib/lib.sh"

share c1
disconnect c1 vol1
connect c1 vol1 --ctrl-loss-tmo 600 --keep-alive-tmo $((2 * slow))
must on c1 "modprobe raid1 && modprobe brd rd_nr=1 rd_size=32768 && mdadm --create /dev/md0 --run --assume-clean --metadata=1.2 --level=1 \
	--raid-devices=2 --failfast --bitmap=none --size=16M /dev/ram0 $device"
must vm link-down target 0
must wait_until c1 60 "grep -q queueing $initiator/vol1/state"
spawn waits c1 "dd if=/dev/zero of=$device bs=4k count=1 seek=100000 oflag=direct"
must wait_until c1 30 'grep -q "(dd) D" /proc/[0-9]*/stat'
start=$(now_ms)
check "a write to the array succeeds on the other disk" on c1 "dd if=/dev/zero of=/dev/md0 bs=4k count=1 oflag=direct"
check "md has failed the disk" wait_until c1 30 "grep -q '(F)' /proc/mdstat"
within "md has failed it long before ctrl_loss_tmo ends" $(($(now_ms) - start)) $((60000 * slow))
same "the disk still waits for its path" queueing "$(on c1 "cat $initiator/vol1/state")"
check "a request without failfast still waits" on c1 'grep -q "(dd) D" /proc/[0-9]*/stat'
must vm link-up target 0
check "the waiting request succeeds when the path is back" join waits
must on c1 "mdadm --stop /dev/md0 && mdadm --zero-superblock $device && rmmod brd"
disconnect c1 vol1
