#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: with fewer receive buffers than requests, each message waits for a credit, and all data arrives.
# tier: heart
# turn: 4
# takes: 60

. "${0%/*}/../lib/lib.sh"

must on target 'hcablk target listen --port 7744 --queue-credits 4'
share c1
rnr_client=$(rnr c1)
rnr_target=$(rnr target)
check "fio verifies 128 requests with 4 credits" fio c1 "--name=v --filename=$device --rw=randrw --bs=4k --iodepth=128 --numjobs=2 \
	--size=$(few 4)M --offset_increment=64M --verify=crc32c --verify_fatal=1"
check "fio verifies large requests with 4 credits" fio c1 "--name=v --filename=$device --rw=randrw --bs=512k --iodepth=32 \
	--size=$(few 16)M --verify=crc32c --verify_fatal=1"
less "some requests waited for credits" 0 "$(stat_of c1 $initiator/vol1 credit_waits)"
same "the client saw no receiver not ready" "$rnr_client" "$(rnr c1)"
same "the target saw no receiver not ready" "$rnr_target" "$(rnr target)"
disconnect c1 vol1

# An eager write that the drive delays keeps its ring slot, and the slots of writes that overtake it: on both sides the
# credits bound the number of these.
must on target "modprobe dm_mod && echo '0 65536 linear $drive2 0' | dmsetup create gate && dmsetup mknodes &&
	printf '0 65536 linear /dev/mapper/gate 0\n65536 65536 linear $drive2 65536\n' | dmsetup create both && dmsetup mknodes"
export_volume both /dev/mapper/both c1
connect c1 both --queues 1 --small-write 0
must on c1 "dd if=$device of=/dev/null bs=4k count=1 iflag=direct"
must on target 'dmsetup suspend --nolockfs gate'
spawn held c1 "dd if=/dev/zero of=$device bs=4k count=1 oflag=direct"
must wait_until c1 30 "awk '{ exit !(\$2 == 1) }' /sys/block/$disk/inflight"
check "eager writes overtake a delayed one" on c1 "dd if=/dev/zero of=$device bs=4k seek=8192 count=40 oflag=direct"
must on target 'dmsetup resume gate'
check "the delayed eager write succeeds" join held
same "the session stays live" live "$(on c1 "cat $initiator/both/state")"
less "some writes were eager" 3 "$(stat_of c1 $initiator/both eager_writes)"
less "some writes found no ring slot" 0 "$(stat_of c1 $initiator/both eager_misses)"
disconnect c1 both
must on target 'hcablk target unexport both && dmsetup remove both && dmsetup remove gate'

must on target 'hcablk target unlisten --all && hcablk target listen --queue-credits 1'
connect c1 vol1
check "hcablk-scatter reads what it wrote with one credit" on c1 "hcablk-scatter $device edges 21 16"
check "fio verifies 32 requests with one credit" fio c1 "--name=v --filename=$device --rw=randrw --bs=16k --iodepth=32 \
	--size=$(few 4)M --verify=crc32c --verify_fatal=1"
same "the client saw no receiver not ready with one credit" "$rnr_client" "$(rnr c1)"
same "the target saw no receiver not ready with one credit" "$rnr_target" "$(rnr target)"
