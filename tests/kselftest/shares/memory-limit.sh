#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: the target's buffers never take more memory than the administrator allows, for any number of clients.
# turn: 20
# takes: 40

. "${0%/*}/../lib/lib.sh"
. "${0%/*}/../lib/shares.sh"

# A session may have 64 MiB, and needs 3 on soft-RoCE (2 of the eager ring, 1 of buffers) and some besides its data; the limit is
# enough for six sessions.
must on target 'hcablk target listen --id 1 --buffer-mib 64 --memory-mib 100'
for n in 1 2 3 4 5 6 7; do
	export_volume vol$n "$drive" c1 c2
done
least_of 128
all=$(((7 * least - 1) >> 20))
must on target "echo $all > $port/memory_mib"
same "without sessions nothing is used" 0 "$(memory_of used)"
available() {
	on target "awk '\$1 == \"MemAvailable:\" { print \$2 }' /proc/meminfo"
}
before=$(available)
watch_memory
connect c1 vol1 --queues 1
first=$device
less "the first session gets three quarters of all memory, except for fractions of a buffer" $(((all << 20) * 3 / 4 - (64 << 10))) \
	"$(memory_of used)"
# A new session gets memory that the first one uses.
ON_SECONDS=330 spawn load c1 "fio --name=l --filename=$first --direct=1 --ioengine=libaio --rw=randrw --bsrange=4k-1M --iodepth=64 \
	--offset=512M --size=64M --time_based --runtime=300 --norandommap 2>&1"
must wait_until c1 30 "awk '{ exit !(\$1 > 20 && \$5 > 20) }' /sys/block/${first#/dev/}/stat"
for n in 2 3 4 5 6; do
	guest=$([ $((n % 2)) = 0 ] && echo c2 || echo c1)
	connect "$guest" vol$n --queues 1
done
same "six sessions have their own buffers" $((6 * least)) "$(memory_of reserved)"
like "the seventh session is refused" "memory|Cannot allocate" "$(on c2 "hcablk connect $target_address vol7 --queues 1" 2>&1)"
check "the target's log gives the reason and the amount, once" \
	[ "$(in_log target "refused .* volume vol7: .*memory_mib: $((least >> 10)) KiB needed; of $((all << 10)) KiB," | wc -l)" = 1 ]
check "the client's log gives the reason" wait_log c2 60 'no memory left for another session'
took=$((before - $(available)))
echo "# MemAvailable went down by $took KiB" >&2
# The account covers all memory that the target allocates for sessions. The kernel caches some of its own in addition: sockets,
# routes, slabs, the volumes. A debug kernel also records each allocation, and keeps freed memory for a while.
on target '[ -e /sys/kernel/debug/kmemleak ]' ||
	less "the machine's free memory shrinks by no more than the limit" $took $(((all + 8) << 10))

like "the limit cannot be lowered below the sessions' own buffers" busy "$(on target "env echo $(((6 * least - 1) >> 20)) > $port/memory_mib" 2>&1)"
check "the log gives the reason" wait_log target 60 "memory_mib stays at $all: the existing sessions need $(mib_for $((6 * least))) MiB"
same "the limit stays as it was" $all "$(on target "cat $port/memory_mib")"
check "the limit can be lowered to the sessions' own buffers while requests are in flight" on target "echo $(mib_for $((6 * least))) > $port/memory_mib"
less "next to nothing is shared then" "$(memory_of used)" $((($(mib_for $((6 * least))) << 20) + 1))
check "the limit can be raised" on target "echo $(mib_for $((8 * least))) > $port/memory_mib"
connect c2 vol7 --queues 1
check "every client works" on c2 "hcablk-scatter $device random 53 16"
read -r looks passed <<< "$(watched)"
less "the account was read often" 20 "$looks"
same "the account never exceeded the limit in $looks reads" 0 "$passed"
must on c1 'killall -q -INT fio; true'
join load || true
same "no errors" 0 "$(stat_of c1 $initiator/vol1 errors)"
for n in 1 3 5; do disconnect c1 vol$n; done
for n in 2 4 6 7; do disconnect c2 vol$n; done
must wait_until target 60 "awk '\$1 == \"used\" { exit \$2 != 0 }' $port/memory"
pass "nothing is used when the sessions have ended"
for n in 1 2 3 4 5 6 7; do
	must on target "hcablk target unexport vol$n"
done
