#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: what deep and many queues cost beside their data is in memory_mib, is refused before it is made, and comes back; a host has 16 sessions at most.
# turn: 18
# takes: 10
# guests: target c1

. "${0%/*}/../lib/lib.sh"
. "${0%/*}/../lib/shares.sh"

# Four queues of depth 1024 have 16 MiB of data at most, and at least 4 times 1024 pages for small writes, messages, and the
# books of 2048 requests each.
must on target 'hcablk target listen --id 1 --memory-mib 32'
export_volume vol1 "$drive" c1
connect c1 vol1 --queues 1 --queue-depth 8
disconnect c1 vol1
must wait_until target 60 "awk '\$1 == \"used\" { exit \$2 != 0 }' $port/memory"
available() {
	on target "echo 3 > /proc/sys/vm/drop_caches; awk '\$1 == \"MemAvailable:\" { print \$2 }' /proc/meminfo"
}
like "deep queues are refused" "memory|buffer space|Cannot allocate" \
	"$(on c1 "hcablk connect $target_address vol1 --queues 4 --queue-depth 1024" 2>&1)"
check "the target says why and how much" \
	wait_log target 60 'refused .* volume vol1: .*memory_mib: [0-9]+ KiB needed; of 32768 KiB, 32768 KiB are left'
must wait_until target 60 "awk '\$1 == \"used\" { exit \$2 != 0 }' $port/memory"
pass "nothing of it stays in the account"
check "nor does it keep the RDMA device" wait_until target 60 "! rdma resource show pd | grep -q hcablk"
check "shallow ones are not" connect c1 vol1 --queues 4 --queue-depth 16
disconnect c1 vol1
must wait_until target 60 "awk '\$1 == \"used\" { exit \$2 != 0 }' $port/memory"

must on target "echo 512 > $port/memory_mib"
before=$(available)
connect c1 vol1 --queues 4 --queue-depth 1024
took=$((before - $(available)))
used=$(($(memory_of used) >> 10))
echo "# MemAvailable went down by $took KiB, the account says $used KiB" >&2
less "the pages for small writes are in the account" $((16 << 10)) $(($(memory_of reserved) >> 10))
# See shares/memory-limit.sh.
on target '[ -e /sys/kernel/debug/kmemleak ]' ||
	less "the machine has not more memory less than the account says" $took $((used + (8 << 10)))
check "the client works" on c1 "hcablk-scatter $device random 58 16"

# A limit between what the session needs and a session more is kept while the first one lives.
like "the limit is not lowered below it" busy "$(on target "env echo 32 > $port/memory_mib" 2>&1)"
disconnect c1 vol1
must wait_until target 60 "awk '\$1 == \"used\" { exit \$2 != 0 }' $port/memory"
pass "all of it comes back"
must on target 'hcablk target unexport vol1'

# Sixteen sessions are what a host may have on a volume, however many come at the same time.
must on target 'hcablk target unlisten --all && hcablk target listen --id 1 --buffer-mib 1'
export_volume vol1 "$drive" c1
must on c1 "for n in \$(seq 20); do
	(hcablk connect $target_address vol1 --name s\$n --queues 1 --queue-depth 2 --connect-timeout $((300 * slow)) > /dev/null 2>> /tmp/refused &)
done"
live="cat $initiator/s*/state | grep -c live"
check "sixteen of twenty are granted" wait_until c1 300 "[ \$($live) = 16 ] && [ \$(pidof hcablk | wc -w) = 0 ]"
same "and no more" "16 4" "$(on c1 "$live; grep -c '^hcablk: cannot connect' /tmp/refused" | xargs)"
like "the others are told" 'sessions|memory|queue pairs' "$(on c1 'cat /tmp/refused')"
must on c1 'hcablk disconnect --all'
must on target 'hcablk target unexport vol1'
