#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: while a drive hangs with all the buffers that its session could borrow, another host connects to other volumes.
# turn: 15
# takes: 50
# waits: yes
# timeout: 300

. "${0%/*}/../lib/lib.sh"
. "${0%/*}/../lib/shares.sh"

# One session may borrow more than the port has.
must on target 'hcablk target listen --id 1 --buffer-mib 64 --memory-mib 100'
must on target "modprobe dm_mod && echo '0 262144 linear $drive2 0' | dmsetup create gate && dmsetup mknodes &&
	echo '0 262144 linear /dev/mapper/gate 0' | dmsetup create door && dmsetup mknodes"
export_volume hung /dev/mapper/door c1
export_volume vol1 "$drive" c1 c2
export_volume vol2 "$drive" c2
least_of 128
must on target "echo $(mib_for $((8 * least))) > $port/memory_mib"
limit=$(memory_of limit)
connect c1 hung --queues 1 --io-timeout 600

must on target 'dmsetup suspend --nolockfs gate'
spawn held c1 "fio --output-format=terse --name=l --direct=1 --ioengine=libaio --rw=write --bs=1M --iodepth=64 --size=64M --filename=$device"
# Large requests leave the eighth of the shared memory that is in buffers of a page.
borrowed=$(((limit * 3 / 4 - least) * 6 / 8))
check "the requests of the hung drive borrow nearly all shared memory" \
	wait_until target 60 "awk '\$1 == \"hung\" { exit !(\$6 > $borrowed) }' $port/shares"
connect c2 vol1 --queues 1
connect c2 vol2 --queues 1
pass "another host connects to two volumes while the drive hangs"
same "the hung drive keeps what was borrowed" 1 "$(on target "awk '\$1 == \"hung\" { print (\$6 > $borrowed) }' $port/shares")"
less "the account is within the limit" "$(memory_of used)" $((limit + 1))
check "the volume of the other host works" on c2 "hcablk-scatter $device random 53 16"

must on target 'dmsetup resume gate'
check "the writes succeed when the drive continues" join held
disconnect c1 hung
for n in 1 2; do disconnect c2 vol$n; done
must on target 'for n in hung vol1 vol2; do hcablk target unexport $n || exit; done; dmsetup remove door && dmsetup remove gate'
