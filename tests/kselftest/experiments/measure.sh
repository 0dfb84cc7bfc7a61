#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: `hcablk bench local-remote` and `interference` measure what is there and say what is not; each byte crosses the target's memory as often as its mode has it; both machines are as they were.
# turn: 7
# takes: 150
# timeout: 1200
# skips: siw debug

. "${0%/*}/../lib/lib.sh"
. "${0%/*}/../lib/experiments.sh"
. "${0%/*}/../lib/p2p.sh"

[ "$rdma" != siw ] || skip "iWARP's data in mode p2p goes by RAM"
on target '[ ! -e /sys/kernel/debug/kmemleak ]' || skip "it takes too long on a debug kernel"

lend "$card"
# Soft-RoCE in the place of an HCA that reaches peer memory.
must on target 'modprobe hcablk_target p2p_virtual=1'
client=$(state c1) server=$(state target)
# unchanged "DESCRIPTION"
unchanged() {
	check "$1: the target's part ends" join part
	must wait_until target 30 "$no_queue_pairs"
	same "$1: the client is as it was" "$client" "$(state c1)"
	same "$1: the target is as it was" "$server" "$(state target)"
}

serve
client=$(state c1) server=$(state target)
check "local-remote" bench local-remote --through "'$through'" --drive "$drive" --span 64 --sizes 4096,1048576 --depths 4 --seconds 1 --provider "$card"
unchanged local-remote
page local-remote
ways=$(result local-remote '[.points[].way] | unique | sort | join(" ")')
like "the kernel's own are measured beside it, or it says why not" "^cached direct local (nvme-rdma )?p2p whole$" "$ways"
same "what is not there is left out, with the reason" "true" \
	"$(result local-remote '[.left_out[] | select(.way == "nbd" and (.why | test("has no nbd-server")))] | length == 1')"
same "each has a read and a write of each size" "true" \
	"$(result local-remote '[.points | group_by(.way)[] | length == 4] | all')"
same "and all have moved data" "true" "$(result local-remote '[.points[] | .bytes > 0 and .mean_ns > 0 and .bytes_per_second > 0] | all')"
same "whole requests make no chunks, others do" "true true" "$(result local-remote '[.points[] | select(.size == 1048576)] |
	"\([.[] | select(.way == "whole") | .counted[1].chunks == null] | all) \([.[] | select(.way == "direct") | .counted[1].chunks > 0] | all)"')"
same "a read-only drive is only read" read "$(
	must on target "mkfs.ext4 -q -F $drive2"
	serve
	bench local-remote --through "'$through'" --drive "$drive2" --span 64 --sizes 4096 --depths 1 --seconds 1 --only local,direct --read-only >&2
	join part
	check "the file system is whole" on target "e2fsck -fn $drive2" >&2
	result local-remote '[.points[].direction] | unique | join(" ")')"

serve
check "interference" bench interference --through "'$through'" --drive "$drive" --span 64 --size 262144 --depth 4 --seconds 2 --threads 1 --provider "$card"
unchanged interference
page interference
same "each byte crosses RAM once, through the page cache twice, by peer memory never" "direct 1 1 cached 2 2 p2p 0 0" \
	"$(result interference '[.rows | group_by(.mode)[] | "\(.[0].mode) \([.[].ram_bytes_per_byte] | map(. * 1000 | round / 1000 | tostring) | join(" "))"] |
		[.[1], .[0], .[2]] | join(" ")')"
same "the computation and the target have both done something" true \
	"$(result interference '[.computing_alone > 0, (.rows[] | .computing > 0 and .serving > 0)] | all')"
