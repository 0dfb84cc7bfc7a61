#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: requests beyond 1 MiB are sent whole, up to the configured size and the limits of HCA and buffers, and their data is right.
# tier: heart
# turn: 0
# takes: 140
# skips: siw
# timeout: 1200

. "${0%/*}/../lib/lib.sh"
. "${0%/*}/../lib/p2p.sh"

# limit: prints the KiB of the disk's largest request
limit() {
	on c1 "cat /sys/block/$disk/queue/max_hw_sectors_kb"
}
# moved COUNTER: prints a counter of the target's volume
moved() {
	stat_of target $target/volumes/vol1 "$1"
}
seed=$RANDOM
echo "# seed $seed"

# whole "DESCRIPTION": writes and verifies requests of the largest size, none of which is split. Each pass writes different data,
# so that old data in the same place is noticed.
round=0
whole() {
	local what=$1 kib writes reads verify
	round=$((round + 1))
	verify="--verify=pattern --verify_pattern=$(printf '0x%02x%08x' $round $((seed * 65537 % 4294967295)))%o --verify_interval=4k"
	kib=$(limit)
	must on c1 "echo none > /sys/block/$disk/queue/scheduler"
	writes=$(moved writes)
	check "$what: $kib KiB are written" fio c1 "--name=v --filename=$device --rw=write --bs=${kib}k --size=$((kib * 4))k \
		--iodepth=2 --offset=64k $verify --do_verify=0"
	# The block layer makes two bios of each, and merges them if nothing comes between.
	less "$what: writes are not split" $(($(moved writes) - writes)) 8
	reads=$(moved reads)
	check "$what: $kib KiB are written and read back" fio c1 "--name=v --filename=$device --rw=read --bs=${kib}k --size=$((kib * 4))k \
		--iodepth=2 --offset=64k $verify --verify_fatal=1"
	less "$what: reads are not split" $(($(moved reads) - reads)) 8
	check "$what: memory of every shape is written and read right" on c1 "hcablk-scatter $device random $((seed + round)) 8"
	same "$what: no errors" "0 0" "$(stat_of c1 $initiator/vol1 errors) $(stat_of c1 $initiator/vol1 protocol_errors)"
}

export_volume vol1 "$drive" c1
connect c1 vol1 --queues 1 --max-io-kib 4096
largest=$(limit)
[ "$largest" -gt 1024 ] || skip "the RDMA device's memory regions hold no more than 1 MiB"
# With the tests' own soft-RoCE, whose regions are large.
[[ $(on c1 'modinfo -n rdma_rxe') != */updates/* ]] || same "requests have 4 MiB where a memory region holds them" 4096 "$largest"
disconnect c1 vol1
connect c1 vol1 --queues 1
same "requests have 1 MiB by default" 1024 "$(limit)"
disconnect c1 vol1
connect c1 vol1 --queues 1 --max-io-kib 256
same "requests can be configured smaller" 256 "$(limit)"
disconnect c1 vol1

connect c1 vol1 --queues 1 --max-io-kib 4096
echo "# $largest KiB"
whole "in chunks"
less "chunks were moved" 0 "$(moved chunks)"
same "all requests moved in chunks" 0 "$(moved unchunked)"
disconnect c1 vol1

must on target 'hcablk target unexport vol1'
export_volume vol1 "$drive" --chunk-kib=64 c1
connect c1 vol1 --queues 1 --max-io-kib 1536
same "requests have the configured size" 1536 "$(limit)"
whole "in many chunks"
disconnect c1 vol1

must on target 'hcablk target unexport vol1'
export_volume vol1 "$drive" --chunk-kib=0 c1
connect c1 vol1 --queues 1 --max-io-kib 4096 --no-remote-invalidate
whole "in one piece"
disconnect c1 vol1

must on target "hcablk target unexport vol1 && truncate -s 64M /tmp/image"
export_volume vol1 /tmp/image --mode=cached c1
connect c1 vol1 --queues 1 --max-io-kib 4096
same "requests of a file are as large" "$largest" "$(limit)"
whole "through the page cache"
disconnect c1 vol1
must on target 'hcablk target unexport vol1 && rm /tmp/image'

export_volume vol1 "$drive" --cache-mib=16 c1
connect c1 vol1 --queues 1 --max-io-kib 4096
same "requests of a volume with a cache are as large" "$largest" "$(limit)"
whole "with a cache"
small="dd if=$device of=/tmp/small bs=4k count=8 skip=100 iflag=direct"
must on c1 "$small"
hits=$(moved cache_hits)
must on c1 "$small"
same "small reads are served from the cache" $((hits + 8)) "$(moved cache_hits)"
check "large reads succeed" on c1 "dd if=$device of=/dev/null bs=${largest}k count=2 iflag=direct"
same "large reads bypass the cache" $((hits + 8)) "$(moved cache_hits)"
check "a large write invalidates the cache lines that it covers" on c1 "dd if=/dev/zero of=$device bs=${largest}k count=1 oflag=direct && $small &&
	cmp -n 32768 /tmp/small /dev/zero"
disconnect c1 vol1
must on target 'hcablk target unexport vol1'

lend "$card"
export_volume vol1 "$drive" --mode=p2p --provider="$card" c1
connect c1 vol1 --queues 1 --max-io-kib 4096
same "requests through peer memory are as large" "$largest" "$(limit)"
whole "peer to peer"
same "all bytes went through peer memory" "$(($(moved read_bytes) + $(moved written_bytes))) 0" "$(moved p2p_bytes) $(moved p2p_fallbacks)"
disconnect c1 vol1
must on target 'hcablk target unexport vol1'

# Requests are no larger than the transfer buffers allow.
must on target 'hcablk target unlisten --all && hcablk target listen --buffer-mib 2'
export_volume vol1 "$drive" c1
connect c1 vol1 --queues 1 --queue-depth 8 --max-io-kib 4096
same "a request may take three quarters of 2 MiB" 1536 "$(limit)"
check "the target logs the limit" wait_log target 60 "requests are limited to 1536 KiB instead of $largest KiB"
check "the client logs the limit" wait_log c1 60 'requests are limited to 1536 KiB instead of 4096 KiB: the target supports no more'
like "the command reports the limit" "requests have 1536 KiB at most, not 4096" \
	"$(on c1 "hcablk connect $target_address vol1 --queues 1 --queue-depth 8 --max-io-kib 4096" 2>&1)"
check "several large requests take turns" fio c1 "--name=v --filename=$device --rw=randrw --bs=1536k --size=12M --iodepth=4 \
	--verify=crc32c --verify_fatal=1"
disconnect c1 vol1
connect c1 vol1 --queues 2 --max-io-kib 4096
[ "$(queue_pairs c1)" = 2 ] || same "requests never have less than 1 MiB" 1024 "$(limit)"
check "data is right with 1 MiB" on c1 "hcablk-scatter $device random $((seed + 1)) 4"
disconnect c1 vol1

# Half of the limit of all sessions, which one host may have, is too small for buffers of that size.
must on target 'hcablk target unlisten --all && hcablk target listen --buffer-mib 4 --memory-mib 6'
connect c1 vol1 --queues 1 --queue-depth 8 --max-io-kib 4096
same "requests have 1 MiB where memory is short" 1024 "$(limit)"
check "the target logs that memory is short" wait_log target 60 'no memory for requests larger than 1024 KiB'
check "data is right where memory is short" on c1 "hcablk-scatter $device random $((seed + 3)) 4"
disconnect c1 vol1

must on target 'hcablk target unexport vol1; hcablk target unlisten --all; rmmod hcablk_target && modprobe hcablk_target rdma_read=0'
export_volume vol1 "$drive" c1
connect c1 vol1 --queues 1 --max-io-kib 4096
same "requests have 1 MiB without RDMA READ" 1024 "$(limit)"
check "data is right without RDMA READ" on c1 "hcablk-scatter $device random $((seed + 2)) 4"
