#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: `hcablk bench local-remote` and `interference` measure every data path that exists, and report the others with the reason; each byte crosses the target's memory as often as the mode says; both machines are left as they were.
# turn: 8
# takes: 150
# timeout: 1200
# skips: siw debug

. "${0%/*}/../lib/lib.sh"
. "${0%/*}/../lib/experiments.sh"
. "${0%/*}/../lib/p2p.sh"

[ "$rdma" != siw ] || skip "data of mode p2p moves through RAM on iWARP"
on target '[ ! -e /sys/kernel/debug/kmemleak ]' || skip "the experiments take too long on a debug kernel"

lend "$card"
# Soft-RoCE in the place of an HCA that reaches peer memory.
must on target 'modprobe hcablk_target p2p_virtual=1'

serve
remember
check "local-remote measures every data path" bench local-remote --through "'$through'" --drive "$drive" --span 64 --sizes 4096,1048576 --depths 4 --seconds 1 --provider "$card"
unchanged local-remote
page local-remote
ways=$(result local-remote '[.points[].way] | unique | sort | join(" ")')
like "local-remote measures the kernel's nvme-rdma if it is possible" "^cached direct local (nvme-rdma )?p2p whole$" "$ways"
same "local-remote leaves out NBD, and reports that the target has no nbd-server" "true" \
	"$(result local-remote '[.left_out[] | select(.way == "nbd" and (.why | test("has no nbd-server")))] | length == 1')"
same "every data path has a read and a write of each size" "true" \
	"$(result local-remote '[.points | group_by(.way)[] | length == 4] | all')"
same "every point moved data" "true" "$(result local-remote '[.points[] | .bytes > 0 and .mean_ns > 0 and .bytes_per_second > 0] | all')"
same "requests of 1 MiB move whole with chunk_kib 0, and otherwise in chunks" "true true" "$(result local-remote '[.points[] | select(.size == 1048576)] |
	"\([.[] | select(.way == "whole") | .counted[1].chunks == null] | all) \([.[] | select(.way == "direct") | .counted[1].chunks > 0] | all)"')"
must on target "mkfs.ext4 -q -F $drive2"
serve
check "with --read-only local-remote accepts a drive with a file system" \
	bench local-remote --through "'$through'" --drive "$drive2" --span 64 --sizes 4096 --depths 1 --seconds 1 --only local,direct --read-only
must join part
check "the file system is intact" on target "e2fsck -fn $drive2"
same "with --read-only local-remote only reads" read "$(result local-remote '[.points[].direction] | unique | join(" ")')"

serve
remember
check "interference measures every mode" bench interference --through "'$through'" --drive "$drive" --span 64 --size 262144 --depth 4 --seconds 2 --threads 1 --provider "$card"
unchanged interference
page interference
same "each byte crosses RAM once in mode direct, twice in mode cached, never in mode p2p" "direct 1 1 cached 2 2 p2p 0 0" \
	"$(result interference '[.rows | group_by(.mode)[] | "\(.[0].mode) \([.[].ram_bytes_per_byte] | map(. * 1000 | round / 1000 | tostring) | join(" "))"] |
		[.[1], .[0], .[2]] | join(" ")')"
same "the computation and the target both made progress" true \
	"$(result interference '[.computing_alone > 0, (.rows[] | .computing > 0 and .serving > 0)] | all')"
