#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: a mounted file system whose target dies can be unmounted, and the disk goes then.
# group: fail
# waits: yes
# timeout: 200
# expect-log: (EXT4-fs|JBD2|Buffer I/O|Aborting journal).*

. "${0%/*}/lib.sh"

export_volume vol1 "$drive" c1
connect c1 vol1 --io-timeout 4
must on c1 "modprobe ext4; mkdir -p /mnt/a; mkfs.ext4 -q -F $device 200M && mount -t ext4 $device /mnt/a"
spawn writer c1 'n=0; while dd if=/dev/zero of=/mnt/a/f$n bs=64k count=8 conv=fsync; do n=$((n + 1)); done 2> /dev/null; exit 1'
must wait_until c1 30 '[ -e /mnt/a/f3 ]'
must vm kill target
ends_within writer 60000 "a mounted file system's target killed"
check "it is unmounted" on c1 'umount /mnt/a'
check "it is disconnected" on c1 'hcablk disconnect vol1'
check "the module unloads" on c1 'rmmod hcablk hcablk_core'
