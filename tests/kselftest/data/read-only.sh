#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: clients read a read-only volume, and cannot write it.
# tier: heart
# turn: 5
# takes: 5

. "${0%/*}/../lib/lib.sh"

must on target "dd if=/dev/urandom of=$drive bs=1M count=4 oflag=direct"
export_volume vol1 "$drive" --read-only c1
connect c1 vol1
same "the disk is read-only" 1 "$(on c1 "blockdev --getro $device")"
before=$(on target "dd if=$drive bs=1M count=4 iflag=direct | sha256sum")
same "the client reads what the drive has" "$before" "$(on c1 "dd if=$device bs=1M count=4 iflag=direct | sha256sum")"
refuse "a write to the read-only disk fails" on c1 "dd if=/dev/zero of=$device bs=4k count=1 oflag=direct"
# A client may clear its disk's read-only flag: the target still refuses writes.
on c1 "blockdev --setrw $device" > /dev/null 2>&1
refuse "a write fails after the client has cleared the read-only flag" on c1 "dd if=/dev/zero of=$device bs=4k count=1 oflag=direct"
same "the drive's data has not changed" "$before" "$(on target "dd if=$drive bs=1M count=4 iflag=direct | sha256sum")"
