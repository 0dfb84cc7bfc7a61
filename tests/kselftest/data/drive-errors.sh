#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: an error of the target's drive is reported to the client, for that request only.
# turn: 17
# takes: 10

. "${0%/*}/../lib/lib.sh"

must on target 'modprobe null_blk nr_devices=0 && mkdir /sys/kernel/config/nullb/bad &&
	cd /sys/kernel/config/nullb/bad && echo 64 > size && echo 1 > memory_backed &&
	echo +2048-2055 > badblocks && echo 1 > power'
export_volume bad /dev/bad c1
connect c1 bad
refuse "a read of a bad block fails" on c1 "dd if=$device of=/dev/null bs=4k skip=256 count=1 iflag=direct"
refuse "a write of a bad block fails" on c1 "dd if=/dev/zero of=$device bs=4k seek=256 count=1 oflag=direct"
check "the neighbours of the bad block are written and read" on c1 "dd if=/dev/urandom of=$device bs=4k seek=255 count=1 oflag=direct &&
	dd if=$device of=/dev/null bs=4k skip=257 count=1 iflag=direct"
refuse "a large read that includes the bad block fails" on c1 "dd if=$device of=/dev/null bs=1M skip=1 count=1 iflag=direct"
check "other requests succeed" on c1 "hcablk-scatter $device gaps 41 1"
less "the client counts the errors" 1 "$(stat_of c1 $initiator/bad errors)"
less "the target counts the errors" 1 "$(stat_of target $target/volumes/bad errors)"
same "the connection stays live" live "$(on c1 "cat $initiator/bad/state")"
same "a failed request is not a protocol error" 0 "$(stat_of c1 $initiator/bad protocol_errors)"
