#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: writes arrive whole and at their place when the target reads their data into registered memory, as on iWARP.
# turn: 16
# takes: 90
# timeout: 800

. "${0%/*}/../lib/lib.sh"

must on target 'modprobe hcablk_target force_mr=1'
export_volume vol1 "$drive" c1 c2
for client in c1 c2; do
	connect $client vol1 --small-write 0 --eager-write 0
done
echo "# $(on c1 "hcablk-scatter $device sizes 0")"
seed=$RANDOM
echo "# seed $seed"
for case in sizes pages edges gaps random; do
	check "$case: hcablk-scatter reads what it wrote" on c1 "hcablk-scatter $device $case $seed 24"
done
check "fio verifies many requests of all sizes" fio c1 "--name=v --filename=$device --rw=randrw --bsrange=512-1M \
	--blockalign=512 --iodepth=32 --numjobs=2 --size=$(few 16)M --offset_increment=100M --verify=crc32c --verify_fatal=1"
check "fio verifies small writes, one at a time" fio c2 "--name=v --filename=$device --rw=randwrite --bs=4k --iodepth=1 --offset=400M --size=$(few 1)M \
	--verify=crc32c --verify_fatal=1"
same "the drive holds what the client reads" "$(on target "dd if=$drive bs=1M count=24 iflag=direct | sha256sum")" \
	"$(on c1 "dd if=$device bs=1M count=24 iflag=direct | sha256sum")"
same "the target registered memory for every write" "$(stat_of target $target/volumes/vol1 writes)" \
	"$(stat_of target $target/volumes/vol1 registrations)"
same "the client has no errors" 0 "$(stat_of c1 $initiator/vol1 errors)"
same "the target has no protocol errors" 0 "$(stat_of target $target/volumes/vol1 protocol_errors)"
