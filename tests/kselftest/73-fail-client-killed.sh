#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: when a client dies under I/O the target cleans its sessions up, and other clients do not notice.
# group: fail
# waits: yes
# timeout: 200

. "${0%/*}/lib.sh"

share c1 c2
start_load victim c1 "$device" --offset=512M
ON_SECONDS=100 spawn other c2 "fio --name=v --filename=$device --direct=1 --ioengine=libaio --rw=randrw --bs=16k \
	--iodepth=16 --size=$(few 64)M --verify=crc32c --verify_fatal=1"
must wait_until c2 30 "awk '{ exit !(\$5 > 40) }' /sys/block/$disk/stat"
must vm kill c1
join victim
check "the target ends the dead client's session" wait_until target 60 "[ \$(wc -l < $target/volumes/vol1/clients) = 1 ]"
same "the other's is left" "$(host_id c2)" "$(on target "cut -d' ' -f1 $target/volumes/vol1/clients")"
check "the other client's data is right" join other
check "the dead client's queue pairs are gone" wait_until target 30 \
	"[ \$(rdma resource show qp | grep -v 'type GSI' | wc -l) = $(queue_pairs c2) ]"
must vm start c1
connect c1 vol1
like "the log says what failed" "^queue [0-9]+: .* failed: " \
	"$(on target "dmesg | sed -n 's/^.* vol1: session .* of $(host_id c1) ended: //p' | tail -n 1")"
check "the client comes back" on c1 "hcablk-scatter $device random 73 16"
