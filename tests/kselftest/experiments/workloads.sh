#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: `hcablk bench overlap`, `database`, `scale` and `ocfs2` measure what they promise, with one and two clients; counters show the optimizations that are switched off, and all machines are left as they were.
# turn: 6
# takes: 190
# timeout: 1500
# skips: siw debug

. "${0%/*}/../lib/lib.sh"
. "${0%/*}/../lib/experiments.sh"

[ "$rdma" != siw ] || skip "most data paths that the experiments compare do not exist on iWARP"
on target '[ ! -e /sys/kernel/debug/kmemleak ]' || skip "the experiments take too long on a debug kernel"

serve
remember
check "overlap records reads and writes" bench overlap --through "'$through'" --drive "$drive" --span 64 --sizes 4096,1048576 --requests 4 --seconds 1 --only local,direct,whole
unchanged overlap
page overlap
same "overlap has reads and writes of each size for every data path" "direct 4 local 4 whole 4" \
	"$(result overlap '[.rows | group_by(.way)[] | "\(.[0].way) \(length)"] | join(" ")')"
same "the parts of each recorded request have a time" true \
	"$(result overlap '[.rows[] | select(.way != "local") | (.parts_ns | add) > 0] | all')"
same "large requests of the default move in chunks of 128 KiB, and of volume whole in one piece" "8 1" \
	"$(result overlap '[.rows[] | select(.size == 1048576 and .direction == "read" and .way != "local") | .example.chunks | length] | map(tostring) | join(" ")')"
same "a request that moves whole has no time in which drive and wire work together" true \
	"$(result overlap '[.rows[] | select(.way == "whole") | .parts_ns.both == null] | all')"
check "the recordings are in the folder, and can be shown" \
	on c1 'hcablk trace show /tmp/overlap/direct-read-1048576-target.trace /tmp/overlap/direct-read-1048576-client.trace'

serve
remember
check "database measures variants" bench database --through "'$through'" --drive "$drive" --span 64 --depth 64 --seconds 2 --only full,registration,interrupts,messages,none,polling,ublk,local
unchanged database
page database
same "database measures all variants that are possible" "full interrupts local messages none polling registration" \
	"$(result database '[.rows[].variant] | sort | join(" ")')"
same "database leaves out ublk without systemd, with the reason" "ublk true" \
	"$(result database '.left_out[] | "\(.way) \(.why | length > 10)"')"
same "data and log both made progress in every variant" true \
	"$(result database '[.rows[] | .data_per_second > 0 and .log_per_second > 0] | all')"
same "the writes of the log are the writes with FUA" true \
	"$(result database '.rows[] | select(.variant == "full") | .counted[1].fua_writes == .log.write.requests')"
same "few requests register memory by default, and all without this optimization" "true true" \
	"$(result database '[.rows[] | {(.variant): .each.registrations}] | add | "\(.full < 0.5) \(.registration >= 1)"')"
same "more interrupts without interrupt batching, and none with polling" "true true" \
	"$(result database '[.rows[] | {(.variant): .each.interrupts}] | add | "\(.interrupts > 2 * .full) \(.polling < 0.5)"')"
same "more messages without message batches" true \
	"$(result database '[.rows[] | {(.variant): .each.messages}] | add | .messages > .full')"

serve
serve_client
remember
further=$(footprint c2)
check "scale measures clients and volumes" bench scale --through "'$through'" --client-through "'$client_through'" --drive "$drive" --span 64 --volumes 1,3 --seconds 1 --only local,direct
must join further
unchanged scale
same "scale leaves the further client as it was" "$further" "$(footprint c2)"
page scale
same "scale has a row for each number of clients and of volumes" "direct 1 direct 2 local 1 local 2, 1 3" \
	"$(result scale '([.clients[] | "\(.way) \(.clients)"] | sort | join(" ")) + ", " + ([.volumes[].volumes | tostring] | join(" "))')"
same "all clients and volumes made progress" true \
	"$(result scale '[(.clients[], .volumes[]) | .requests > 0 and .fairness > 0] | all')"
same "the queue pairs of both sides are counted for each number of volumes" true \
	"$(result scale '[.volumes[] | .client_resources.qp > 0 and .target_resources.qp > 0] | all')"

serve
serve_client
remember
further=$(footprint c2)
check "ocfs2 measures files on one and on two clients" bench ocfs2 --through "'$through'" --client-through "'$client_through'" --drive "$drive" --span 256 \
	--only direct --sizes 65536,1048576 --read-ahead 128 --small-mib 8 --large-mib 16 --web-files 8 --web-file-kib 256 --tile 32 --seconds 2
must join further
unchanged ocfs2
same "ocfs2 leaves the further client as it was" "$further" "$(footprint c2)"
page ocfs2
same "ocfs2 has every pattern with one node and with two" "1 re-read 1 read 1 tile 1 web 1 write 2 re-read 2 read 2 tile 2 web 2 write" \
	"$(result ocfs2 '[.rows[] | "\(.nodes) \(.pattern)"] | unique | join(" ")')"
same "every load moved data" true "$(result ocfs2 '[.rows[] | .bytes_per_second > 0] | all')"
same "a file in the page cache is read faster than from the drive" true \
	"$(result ocfs2 '[.rows[] | select(.nodes == 1 and .file == "small" and .size == 1048576)] |
		(map(select(.pattern == "re-read"))[0].bytes_per_second) > (map(select(.pattern == "read" and (.caching | startswith("cached"))))[0].bytes_per_second)')"
refuse "ocfs2 leaves no signature on the drive" on target "blkid -p $drive"
