#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: no CPU copies data except for small reads, the counters equal what went over the wire, and no receiver is ever not ready.
# tier: heart
# turn: 17
# takes: 20

. "${0%/*}/../lib/lib.sh"

share c1
declare -A rnr_before
for guest in c1 target; do
	rnr_before[$guest]=$(rnr $guest)
done
base_reads=$(stat_of c1 $initiator/vol1 reads)
base_bytes=$(stat_of c1 $initiator/vol1 read_bytes)
target_base_reads=$(stat_of target $target/volumes/vol1 reads)
base_copied=$(stat_of c1 $initiator/vol1 copied_bytes)
# Small reads are copied, unless the transport has no immediate values.
small=1
[ "$rdma" != siw ] || small=0

must on c1 "dd if=/dev/zero of=$device bs=64k count=100 oflag=direct"
must on c1 "dd if=$device of=/dev/null bs=64k count=100 iflag=direct"
same "writes and large reads are not copied" "$base_copied" "$(stat_of c1 $initiator/vol1 copied_bytes)"
must on c1 "dd if=$device of=/dev/null bs=4k count=500 iflag=direct"
same "small reads are copied" $((base_copied + small * 500 * 4096)) "$(stat_of c1 $initiator/vol1 copied_bytes)"
must fio c1 "--name=l --filename=$device --rw=randrw --bsrange=4k-256k --iodepth=128 --size=24M --numjobs=2"

same "the client counts at least 500 more reads" 1 $(($(stat_of c1 $initiator/vol1 reads) - base_reads >= 500))
same "the client counts at least 4 KiB for each read" 1 $(($(stat_of c1 $initiator/vol1 read_bytes) - base_bytes >= 500 * 4096))
same "client and target count the same reads" \
	$(($(stat_of c1 $initiator/vol1 reads) - base_reads)) \
	$(($(stat_of target $target/volumes/vol1 reads) - target_base_reads))
for counter in writes written_bytes read_bytes immediates; do
	same "client and target count the same $counter" "$(stat_of c1 $initiator/vol1 $counter)" \
		"$(stat_of target $target/volumes/vol1 $counter)"
done
immediates=$(stat_of c1 $initiator/vol1 immediates)
copied=$(stat_of c1 $initiator/vol1 copied_bytes)
same "all bytes moved by RDMA or were copied" \
	$(($(stat_of c1 $initiator/vol1 read_bytes) + $(stat_of c1 $initiator/vol1 written_bytes))) \
	$(($(stat_of c1 $initiator/vol1 rdma_bytes) + copied))
# All requests have 4 KiB and more, and the largest small read has twice that.
less "small reads are copied: at least 4 KiB for each immediate value" $((immediates * 4096 - 1)) "$copied"
less "other reads are not copied: at most 8 KiB for each immediate value" "$copied" $((immediates * 8192 + 1))
same "the target copies nothing" 0 "$(stat_of target $target/volumes/vol1 copied_bytes)"
same "the client has no errors" 0 "$(stat_of c1 $initiator/vol1 errors)"
for guest in c1 target; do
	same "$guest: no receiver was not ready" "${rnr_before[$guest]}" "$(rnr $guest)"
done
check "hcablk stats shows the counters" on c1 "hcablk stats --json | grep -q '\"copied_bytes\": *$copied,'"
