#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: memory_mib covers what queues need besides data; a session over the limit is refused before its memory is allocated, and all of it is freed afterwards; a host has at most 16 sessions.
# turn: 18
# takes: 10
# guests: target c1

. "${0%/*}/../lib/lib.sh"
. "${0%/*}/../lib/shares.sh"

# Four queues of depth 1024 have at most 16 MiB of data, and at least 4 times 1024 pages for small writes, the messages, and the
# states of 2048 requests each.
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
check "the target's log gives the reason and the amount" \
	wait_log target 60 'refused .* volume vol1: .*memory_mib: [0-9]+ KiB needed; of 32768 KiB, 32768 KiB are left'
must wait_until target 60 "awk '\$1 == \"used\" { exit \$2 != 0 }' $port/memory"
pass "the refused session is not in the account any more"
check "the refused session leaves no protection domain" wait_until target 60 "! rdma resource show pd | grep -q hcablk"
check "shallow queues are accepted" connect c1 vol1 --queues 4 --queue-depth 16
disconnect c1 vol1
must wait_until target 60 "awk '\$1 == \"used\" { exit \$2 != 0 }' $port/memory"

must on target "echo 512 > $port/memory_mib"
before=$(available)
connect c1 vol1 --queues 4 --queue-depth 1024
took=$((before - $(available)))
used=$(($(memory_of used) >> 10))
echo "# MemAvailable went down by $took KiB, the account says $used KiB" >&2
less "the pages for small writes are in the account" $((16 << 10)) $(($(memory_of reserved) >> 10))
# On the debug kernel see shares/memory-limit.sh.
on target '[ -e /sys/kernel/debug/kmemleak ]' ||
	less "the machine's free memory shrinks by no more than the account" $took $((used + (8 << 10)))
check "the client works" on c1 "hcablk-scatter $device random 58 16"

# A limit that is enough for the session alone, but not for what the target has promised, is refused while it lives.
like "the limit cannot be lowered below a session's memory" busy "$(on target "env echo 32 > $port/memory_mib" 2>&1)"
disconnect c1 vol1
must wait_until target 60 "awk '\$1 == \"used\" { exit \$2 != 0 }' $port/memory"
pass "all memory is freed when the session ends"
must on target 'hcablk target unexport vol1'

# A host may have sixteen sessions at a volume, however many it requests at a time.
must on target 'hcablk target unlisten --all && hcablk target listen --id 1 --buffer-mib 1'
export_volume vol1 "$drive" c1
must on c1 "for n in \$(seq 20); do
	(hcablk connect $target_address vol1 --name s\$n --queues 1 --queue-depth 2 --connect-timeout $((300 * slow)) > /dev/null 2>> /tmp/refused &)
done"
live="cat $initiator/s*/state | grep -c live"
check "sixteen of twenty sessions are granted" wait_until c1 300 "[ \$($live) = 16 ] && [ \$(pidof hcablk | wc -w) = 0 ]"
same "four sessions are refused" "16 4" "$(on c1 "$live; grep -c '^hcablk: cannot connect' /tmp/refused" | xargs)"
like "the refused sessions get a reason" 'sessions|memory|queue pairs' "$(on c1 'cat /tmp/refused')"
must on c1 'hcablk disconnect --all'
must on target 'hcablk target unexport vol1'
