#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: two clients use one partition table that one of them wrote.
# tier: heart
# turn: 10
# takes: 15

. "${0%/*}/../lib/lib.sh"

export_volume vol1 "$drive" c1 c2
connect c1 vol1
check "a client writes a partition table with two partitions" on c1 "printf 'label: gpt\n,100M\n,\n' | sfdisk $device"
check "the client's partitions appear" wait_until c1 60 "[ -b ${device}p1 ] && [ -b ${device}p2 ]"
same "the first partition has the right size" $((100 << 20)) "$(on c1 "blockdev --getsize64 ${device}p1")"
check "the first partition stores data" on c1 "hcablk-scatter ${device}p1 random 31 32"
must on c1 "dd if=/dev/urandom of=${device}p2 bs=64k count=8 oflag=direct"
connect c2 vol1
check "the other client finds the partitions when it connects" wait_until c2 60 "[ -b ${device}p2 ]"
same "the other client reads the partition's data" "$(on c1 "dd if=${device}p2 bs=64k count=8 iflag=direct | sha256sum")" \
	"$(on c2 "dd if=${device}p2 bs=64k count=8 iflag=direct | sha256sum")"
must on c2 "wipefs -a $device 2> /dev/null || dd if=/dev/zero of=$device bs=1M count=2 oflag=direct"
disconnect c2 vol1
disconnect c1 vol1
refuse "the partitions are removed with their disk" on c1 "[ -e ${device}p1 ]"
