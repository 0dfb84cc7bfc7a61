#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: a read-only volume is read, and written by nobody.
# tier: heart
# turn: 5
# takes: 5

. "${0%/*}/../lib/lib.sh"

must on target "dd if=/dev/urandom of=$drive bs=1M count=4 oflag=direct"
export_volume vol1 "$drive" --read-only c1
connect c1 vol1
same "the disk is read-only" 1 "$(on c1 "blockdev --getro $device")"
before=$(on target "dd if=$drive bs=1M count=4 iflag=direct | sha256sum")
same "what is read is what the drive has" "$before" "$(on c1 "dd if=$device bs=1M count=4 iflag=direct | sha256sum")"
refuse "it is not written" on c1 "dd if=/dev/zero of=$device bs=4k count=1 oflag=direct"
# Whoever lifts the disk's own protection finds the target's.
on c1 "blockdev --setrw $device" > /dev/null 2>&1
refuse "not by force either" on c1 "dd if=/dev/zero of=$device bs=4k count=1 oflag=direct"
same "the drive is as it was" "$before" "$(on target "dd if=$drive bs=1M count=4 iflag=direct | sha256sum")"
