#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: 10,000 connections that prove nothing, from many addresses, take no more of the target's memory than is documented, and a host with a key connects meanwhile.
# turn: 7
# takes: 175
# skips: siw
# waits: yes
# timeout: 1800

. "${0%/*}/../lib/lib.sh"

[ "$rdma" = rxe ] || skip "the peer's library speaks soft-RoCE only"

use_keys c1
id=$(host_id c1)
must on c2 "printf '$(key_digits c1 host)\n$(key_digits target target)\n' > /tmp/keys"
export_volume vol1 "$drive" c1
# What docs/reference/protocol.md has the target keep: so many challenges, of 256 bytes each beside their places; 512 for an address.
places=4096 share=512
processes=16
addresses=$(few 20)

# objects: how many of 256 bytes the target's allocator has given out
objects() {
	on target "awk '\$1 ~ /^kmalloc-(rnd-[0-9]+-)?256\$/ { n += \$2 } END { print n }' /proc/slabinfo"
}
# used: KiB that the target's kernel uses, without what it would give back
used() {
	on target "sync; echo 3 > /proc/sys/vm/drop_caches
		awk '\$1 ~ /^(SUnreclaim|KernelStack|VmallocUsed|Percpu|PageTables):\$/ { n += \$2 } END { print n }' /proc/meminfo"
}
# from N: c2 asks from its Nth address from now on.
from() {
	must on c2 "dev=\$(ip -o route get $target_address | sed 's/.* dev \([^ ]*\).*/\1/') &&
		ip address add 10.77.0.$((100 + $1))/32 dev \$dev && ip route replace $target_address dev \$dev src 10.77.0.$((100 + $1))"
}
# unproven: asks as often as an address has places, and proves nothing.
unproven() {
	ON_SECONDS=$((300 * slow)) on c2 "hcablk-prove hellos $target_address 7744 $id $processes $((share / processes)) < /tmp/keys"
}

# The first ones have the connection manager and the allocator make what they keep.
began=$(now_ms)
like "who proves nothing is challenged" "$share hellos, 0 processes failed" "$(unproven)"
first=$(objects) first_used=$(used) identifiers=$(on target 'rdma resource show cm_id | wc -l')
# A challenge counts for its address for ten seconds. So this is told by as many as come within that time of the first of those before
# them; where the machine is too busy for that, the host test of challenges.rs alone tells it.
for _ in 1 2 3; do
	before=$(objects) before_began=$began began=$(now_ms)
	like "as many again from that address are challenged" "$share hellos, 0 processes failed" "$(unproven)"
	grown=$(($(objects) - before)) took=$(($(now_ms) - before_began))
	echo "# $share and $share more from one address in $took ms: $grown more objects of 256 bytes" >&2
	if [ $took -lt 10000 ]; then
		less "and take the places of the first" $grown $((share / 2))
		break
	fi
done

began=$(now_ms)
for ((n = 1; n <= addresses; n++)); do
	from $n
	ON_SECONDS=$((300 * slow)) spawn crowd c2 "hcablk-prove hellos $target_address 7744 $id $processes $((share / processes)) < /tmp/keys"
	if [ $((n % 4)) = 1 ]; then
		connect c1 vol1 --queues 2
		check "a host with a key connects beside those of address $n, and reads" on c1 "dd if=$device of=/dev/null bs=64k count=4 iflag=direct"
		disconnect c1 vol1
	fi
	check "all of address $n are challenged" join crowd
done
took=$(($(objects) - first)) took_used=$(($(used) - first_used))
echo "# $((addresses * share)) in $((($(now_ms) - began) / 1000)) s: $took objects of 256 bytes, $took_used KiB" >&2
[ "$slow" != 1 ] || less "these are more than the target keeps" $((2 * places)) $((addresses * share))
# What else uses such objects is not the target's.
less "it keeps no more of them than it has places" $took $((places - share + 256))
less "nor does it take more memory than is documented" $took_used $((1216 + 1024))
check "no connection is left of them" wait_until target 60 "[ \$(rdma resource show cm_id | wc -l) -le $identifiers ]"
check "nor a queue pair" wait_until target 60 "$no_queue_pairs"
connect c1 vol1
check "who has a key connects after all that" on c1 "dd if=$device of=/dev/null bs=64k count=4 iflag=direct"
disconnect c1 vol1
must on target 'hcablk target unexport vol1'
