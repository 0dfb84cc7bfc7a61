#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: when the target's drive hangs, or the cable is cut, requests fail within the configured time.
# turn: 5
# takes: 40
# waits: yes
# timeout: 480

. "${0%/*}/../lib/lib.sh"

# A drive whose writes can be held up: a file on a file system that can be frozen.
must on target "modprobe -a ext4 loop; mkfs.ext4 -q -F $drive2 && mkdir -p /mnt/hold && mount $drive2 /mnt/hold &&
	dd if=/dev/zero of=/mnt/hold/disk bs=1M count=64 && losetup /dev/loop1 /mnt/hold/disk"
export_volume vol2 /dev/loop1 c1
connect c1 vol2 --io-timeout 4
start_load one c1 "$device"
must on target 'fsfreeze --freeze /mnt/hold'
ends_within one 30000 "drive hangs"
check "the disk with the hung drive is removed" wait_until c1 30 "[ ! -e /sys/block/$disk ]"
check "disconnecting does not wait for the drive" on c1 'hcablk disconnect vol2'
same "no queue pair is left" 0 "$(queue_pairs c1)"
must on target 'fsfreeze --unfreeze /mnt/hold'
check "the target ends the session when the drive continues" wait_until target 60 \
	"[ -z \"\$(cat $target/volumes/vol2/clients)\" ]"
connect c1 vol2 --io-timeout 4
check "the volume can be used again" on c1 "hcablk-scatter $device random 72 16"
disconnect c1 vol2
must on target 'hcablk target unexport vol2 && losetup -d /dev/loop1 && umount /mnt/hold'

export_volume vol1 "$drive" c1
connect c1 vol1 --io-timeout 4
start_load two c1 "$device"
must vm link-down target 0
ends_within two 40000 "cable cut"
check "the disk is removed after the cut" wait_until c1 30 "[ ! -e /sys/block/$disk ]"
check "the disk is disconnected after the cut" on c1 'hcablk disconnect vol1'
must vm link-up target 0
check "the target cleans up after the cut" wait_until target 60 "[ -z \"\$(cat $target/volumes/vol1/clients)\" ]"
same "no queue pair is left at the target" 0 "$(queue_pairs target)"
must wait_until c1 60 "ping -c 1 -W 1 $target_address"
connect c1 vol1
check "the volume connects again over the plugged-in cable" on c1 "dd if=$device of=/dev/null bs=4k count=4 iflag=direct"
