#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: while a drive hangs with the buffers that an ended session has borrowed, a session of another volume borrows the rest of both sessions' shared memory.
# turn: 14
# takes: 50
# waits: yes
# timeout: 300

. "${0%/*}/../lib/lib.sh"
. "${0%/*}/../lib/shares.sh"
[ "$rdma" = rxe ] || skip "on iWARP each request has a memory region, and its session keeps the device"

# Each session may borrow 5 MiB, so 10 MiB are shared. The hung session keeps 5 MiB, and large requests cannot use the 1.25 MiB of
# small buffers.
must on target 'hcablk target listen --id 1 --buffer-mib 8'
must on target "modprobe dm_mod && echo '0 262144 linear $drive2 0' | dmsetup create gate && dmsetup mknodes &&
	echo '0 262144 linear /dev/mapper/gate 0' | dmsetup create door && dmsetup mknodes"
export_volume hung /dev/mapper/door c1
export_volume vol1 "$drive" c2
connect c1 hung --queues 1 --io-timeout 600
hung=$device
connect c2 vol1 --queues 1
well=$device

large="--output-format=terse --name=l --direct=1 --ioengine=libaio --rw=write --bs=1M --iodepth=16 --size=64M"
# borrowed VOLUME: prints the bytes that the volume's session has borrowed
borrowed() {
	on target "awk '\$1 == \"$1\" { print \$6 }' $port/shares"
}
must on target 'dmsetup suspend --nolockfs gate'
spawn held c1 "fio $large --filename=$hung"
must wait_until target 60 "awk '\$1 == \"hung\" { exit !(\$6 > 4 * 1048576) }' $port/shares"
must on c1 'hcablk disconnect --force hung'
join held || true
check "the target still waits for the drive" wait_log target 120 'hung: .*still waiting for the drive'
less "the hung drive keeps what was borrowed" $((4 << 20)) "$(borrowed hung)"
spawn load c2 "fio $large --filename=$well --time_based --runtime=$((20 * slow))"
check "the other session borrows 2 MiB of the rest" wait_until target 60 "awk '\$1 == \"vol1\" { exit !(\$6 >= 2 * 1048576) }' $port/shares"
join load || true
same "the other session has no errors" 0 "$(stat_of c2 $initiator/vol1 errors)"

must on target 'dmsetup resume gate'
check "when the drive continues, the session ends" wait_until target 60 "[ -z \"\$(cat $target/volumes/hung/clients)\" ]"
disconnect c2 vol1
check "nothing is used when the sessions have ended" wait_until target 60 "awk '\$1 == \"used\" { exit \$2 != 0 }' $port/memory"
must on target 'hcablk target unexport hung && hcablk target unexport vol1 && dmsetup remove door && dmsetup remove gate'
