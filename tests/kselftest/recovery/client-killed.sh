#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: when a client dies under I/O the target cleans up its sessions, and other clients notice nothing.
# turn: 8
# takes: 170
# waits: yes
# timeout: 1200

. "${0%/*}/../lib/lib.sh"

share c1 c2
start_load victim c1 "$device" --offset=512M
ON_SECONDS=100 spawn other c2 "fio --name=v --filename=$device --direct=1 --ioengine=libaio --rw=randrw --bs=16k \
	--iodepth=16 --size=$(few 64)M --verify=crc32c --verify_fatal=1"
must wait_until c2 30 "awk '{ exit !(\$5 > 40) }' /sys/block/$disk/stat"
must vm kill c1
join victim
check "the target ends the dead client's session" wait_until target 60 "[ \$(wc -l < $target/volumes/vol1/clients) = 1 ]"
same "the other client's session is left" "$(host_id c2)" "$(on target "cut -d' ' -f1 $target/volumes/vol1/clients")"
check "the other client's data is right" join other
check "the dead client's queue pairs are gone" wait_until target 30 \
	"[ \$(rdma resource show qp | grep -v 'type GSI' | wc -l) = $(queue_pairs c2) ]"
must vm start c1
# A rebooted client numbers its queue pairs from the start, and the target's connection manager refuses them at first.
connect c1 vol1
# On iWARP the target has no work request in flight that could fail.
like "the log reports the failure that ended the session" "^(queue [0-9]+|admin queue pair): (.* failed: |nothing was received for )" \
	"$(on target "dmesg | sed -n 's/^.* vol1: session .* of $(host_id c1) ended: //p' | tail -n 1")"
check "the client works after its reboot" on c1 "hcablk-scatter $device random 73 16"
disconnect c1 vol1

# A client that dies while the drive has its requests: before the drive has finished the target sends no response, whose
# failure would reveal the death.
must on target "echo '0 65536 linear $drive2 0' | dmsetup create gate && dmsetup mknodes"
export_volume gate /dev/mapper/gate c1
others=$(queue_pairs c2)
# Counts queue pairs that are not in the error state.
live_pairs="rdma resource show qp | grep -v 'type GSI' | grep -c 'state RTS'"
for kib in 512 16; do
	# On an idle queue pair a keep-alive would fail: each has a request.
	connect c1 gate --queues 1
	must on target "[ \$($live_pairs) -gt $others ]"
	must on target 'dmsetup suspend --nolockfs gate'
	ON_SECONDS=60 spawn victim c1 "fio --name=v --filename=$device --direct=1 --ioengine=libaio --rw=write:64k --bs=${kib}k \
		--iodepth=4 --size=8M"
	# All messages of the client have arrived.
	must wait_until c1 30 "awk '{ exit !(\$9 == 4) }' /sys/block/$disk/stat"
	must wait_until target 30 "[ \$(awk '\$1 == \"receives\" { print \$2 }' $target/volumes/gate/stats) -gt 0 ] && before=\$(cat /proc/net/dev) && usleep 500000 && [ \"\$before\" = \"\$(cat /proc/net/dev)\" ]"
	must vm kill c1
	join victim
	check "$kib KiB: the dead client is noticed although the drive hangs" wait_until target 60 "[ \$($live_pairs) = $others ]"
	must on target 'dmsetup resume gate'
	check "$kib KiB: the session ends when the drive continues" wait_until target 60 "[ \$(wc -l < $target/volumes/gate/clients) = 0 ]"
	must vm start c1
done
must on target 'hcablk target unexport gate && dmsetup remove gate'
