#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: volumes do not mix: each client finds in each volume the data that was written there.
# turn: 15
# takes: 30

. "${0%/*}/../lib/lib.sh"

export_volume vol1 "$drive" c1 c2
export_volume vol2 "$drive2" c1
connect c1 vol1
first=$device
connect c1 vol2
second=$device
connect c2 vol1
other=$device
same "a client has two disks" 2 "$(on c1 'ls -d /sys/block/hcablk* | wc -l')"
same "the second disk has the second drive's size" "$(on target "blockdev --getsize64 $drive2")" "$(on c1 "blockdev --getsize64 $second")"
like "a host that only another volume allows is refused" denied "$(try_connect c2 v2 address=$target_address volume=vol2 \
	host_id="$(host_id c2)")"
options="--direct=1 --ioengine=libaio --name=v --rw=randwrite --bs=16k --iodepth=16 --size=$(few 8)M --verify=crc32c --verify_fatal=1"
ON_SECONDS=100 spawn a c1 "fio $options --filename=$first --offset=0 --randseed=1"
ON_SECONDS=100 spawn b c1 "fio $options --filename=$second --offset=0 --randseed=2"
ON_SECONDS=100 spawn c c2 "fio $options --filename=$other --offset=64M --randseed=3"
for job in a b c; do
	check "load $job reads the data that it wrote" join $job
done
sum() {
	on "$1" "dd if=$2 bs=1M count=8 iflag=direct | sha256sum"
}
same "the first disk holds the first drive's data" "$(sum target "$drive")" "$(sum c1 "$first")"
same "the second disk holds the second drive's data" "$(sum target "$drive2")" "$(sum c1 "$second")"
refuse "the data of the two disks differs" [ "$(sum c1 "$first")" = "$(sum c1 "$second")" ]
must on c1 'hcablk disconnect --all'
refuse "the client has no disk after disconnect --all" on c1 'ls -d /sys/block/hcablk*'
