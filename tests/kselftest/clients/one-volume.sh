#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: two clients use one volume at the same time, and each reads what the other wrote.
# turn: 21
# takes: 25

. "${0%/*}/../lib/lib.sh"

share c1 c2
same "both clients are connected" 2 "$(on target "wc -l < $target/volumes/vol1/clients")"
options="--name=v --filename=$device --rw=randwrite --bs=16k --iodepth=32 --size=$(few 16)M --verify=crc32c \
	--verify_fatal=1 --randseed=5"
ON_SECONDS=100 spawn one c1 "fio --direct=1 --ioengine=libaio $options --offset=0"
ON_SECONDS=100 spawn two c2 "fio --direct=1 --ioengine=libaio $options --offset=256M"
check "c1 writes and verifies its part" join one
check "c2 writes and verifies its part at the same time" join two
part() {
	on "$1" "dd if=$2 bs=1M skip=$3 count=16 iflag=direct | sha256sum"
}
same "c2 reads what c1 wrote" "$(part c1 "$device" 0)" "$(part c2 "$device" 0)"
same "c1 reads what c2 wrote" "$(part c2 "$device" 256)" "$(part c1 "$device" 256)"
same "the drive has what c1 wrote" "$(part target "$drive" 0)" "$(part c1 "$device" 0)"
same "the two parts differ" 1 "$([ "$(part c1 "$device" 0)" = "$(part c1 "$device" 256)" ] || echo 1)"
disconnect c1 vol1
check "one client continues when the other disconnects" on c2 "hcablk-scatter $device random 51 16"
