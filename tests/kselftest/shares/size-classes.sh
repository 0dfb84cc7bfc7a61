#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: requests take buffers that fit their length, large requests find large buffers after many small requests, and all memory is freed.
# turn: 4
# takes: 50
# guests: target c1

. "${0%/*}/../lib/lib.sh"
. "${0%/*}/../lib/shares.sh"

must on target 'hcablk target listen --id 1 --memory-mib 64'
export_volume vol1 "$drive" c1
connect c1 vol1 --queues 1
# Requests are counted: the block layer must not merge adjacent ones while they wait.
must on c1 "echo 2 > /sys/block/${device#/dev/}/queue/nomerges"
buffers() {
	stat_of target $target/volumes/vol1 "$1_buffers"
}
# reach CLASS NUMBER: waits for the counter, which may lag for a moment
reach() {
	wait_until target 60 "awk '\$1 == \"$1_buffers\" { exit !(\$2 >= $2) }' $target/volumes/vol1/stats"
}
# reads SIZE NUMBER
reads() {
	must on c1 "fio --output-format=terse --name=r --filename=$device --direct=1 --ioengine=libaio --rw=randread --bs=$1 \
		--number_ios=$2 --size=256m --iodepth=64 > /dev/null"
}
total=$(class_of 131072 total)
less "large buffers exist" 8 "$total"
small=$(buffers small)
reads 4k 400
check "requests of 4 KiB take small buffers" reach small $((small + 400))
same "requests of 4 KiB take no large buffers" 0 "$(buffers large)"
medium=$(buffers medium)
reads 32k 100
check "requests of 32 KiB take medium buffers" reach medium $((medium + 100))
same "requests of 32 KiB take no large buffers" 0 "$(buffers large)"

# Small requests of every length, in every order.
for round in 1 2 3; do
	must on c1 "fio --output-format=terse --name=s --filename=$device --direct=1 --ioengine=libaio --rw=randrw --bsrange=512-96k \
		--bs_unaligned=0 --blockalign=4k --number_ios=$(few 1000) --size=256m --iodepth=128 --randseed=$round > /dev/null"
done
large=$(buffers large)
reads 1M 64
less "large requests take large buffers after that" $((large + 16)) "$(buffers large)"
same "the number of large buffers is as before" "$total" "$(class_of 131072 total)"
check "data in buffers of every size is right" on c1 "hcablk-scatter $device random 54 16"
same "no errors" 0 "$(stat_of c1 $initiator/vol1 errors)"
less "the session borrows no more than its port allows" $(($(memory_of used) - $(memory_of reserved))) $(((16 << 20) + 1))
disconnect c1 vol1
must wait_until target 60 "awk '\$1 == \"used\" { exit \$2 != 0 }' $port/memory"
for length in 4096 32768 131072; do
	same "no buffer of $length bytes is left" 0 "$(class_of $length total)"
done
