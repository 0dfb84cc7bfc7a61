#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: when the target dies under I/O, requests fail in time, even those of a mounted file system, which can then be unmounted; the disk is removed, and the module unloads.
# turn: 11
# takes: 50
# waits: yes
# timeout: 480
# expect-log: (EXT4-fs|JBD2|Buffer I/O|Aborting journal).*

. "${0%/*}/../lib/lib.sh"

export_volume vol1 "$drive" c1 c2
export_volume vol2 "$drive2" c1
connect c1 vol2 --io-timeout 4
mounted=$disk
must on c1 "modprobe ext4; mkdir -p /mnt/a; mkfs.ext4 -q -F $device 200M && mount -t ext4 $device /mnt/a"
connect c2 vol1 --io-timeout 5
idle=$device
connect c1 vol1 --io-timeout 5
spawn writer c1 'n=0; while dd if=/dev/zero of=/mnt/a/f$n bs=64k count=8 conv=fsync; do n=$((n + 1)); done 2> /dev/null; exit 1'
must wait_until c1 30 '[ -e /mnt/a/f3 ]'
start_load one c1 "$device"
ON_SECONDS=1000 spawn holder c2 "exec sleep $((1000 * slow)) < $idle"
must wait_until c2 60 'pidof sleep'
must vm kill target
ends_within one 40000 "target killed"
check "the disk's state is failed" wait_until c1 30 "grep -q failed $initiator/vol1/state"
like "the disk reports the reason" "^(the target no longer responds|the target has not responded to a keep-alive|a request got no response in time|the connection broke: )" "$(on c1 "cat $initiator/vol1/error")"
check "the disk is removed" wait_until c1 30 "[ ! -e /sys/block/$disk ]"
check "c1 disconnects" on c1 'hcablk disconnect vol1'
ends_within writer 60000 "a mounted file system's target killed"
check "the file system of a dead target is unmounted" on c1 'umount /mnt/a'
check "the unmounted disk is removed" wait_until c1 30 "[ ! -e /sys/block/$mounted ]"
check "the unmounted disk is disconnected" on c1 'hcablk disconnect vol2'
same "no queue pair is left" 0 "$(queue_pairs c1)"
check "the module unloads" on c1 'rmmod hcablk hcablk_core'

# The other client had no requests in flight, but its disk was open.
check "an idle client's requests fail, too" wait_until c2 40 "! dd if=$idle of=/dev/null bs=4k count=1 iflag=direct"
must on c2 'killall sleep'
join holder
check "the idle client's disk is removed" wait_until c2 30 "hcablk disconnect --if-exists vol1 && [ ! -e $idle ]"
check "the idle client's module unloads" on c2 'rmmod hcablk hcablk_core'

must vm start target
export_volume vol1 "$drive" c1
connect c1 vol1
check "a new connection to the restarted target works" on c1 "hcablk-scatter $device random 71 16"
