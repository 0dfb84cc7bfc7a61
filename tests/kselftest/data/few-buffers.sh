#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: requests wait for the target's buffers when few exist, and none is lost or starves.
# tier: heart
# turn: 14
# takes: 15

. "${0%/*}/../lib/lib.sh"

must on target 'hcablk target listen --port 7744 --buffer-mib 1'
share c1
check "fio verifies 64 large requests that share 1 MiB of buffers" fio c1 "--name=v --filename=$device --rw=randrw --bs=512k --iodepth=64 \
	--size=$(few 48)M --verify=crc32c --verify_fatal=1"
check "fio verifies small requests together with large ones" fio c1 "--name=v --filename=$device --rw=randrw --bsrange=4k-1M --iodepth=64 \
	--numjobs=2 --size=$(few 16)M --offset_increment=100M --verify=crc32c --verify_fatal=1"
less "some requests waited for buffers" 0 "$(stat_of target $target/volumes/vol1 buffer_waits)"
same "the client has no errors" 0 "$(stat_of c1 $initiator/vol1 errors)"
