#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: 10,000 unproven connections, from many addresses, take no more of the target's memory than documented, and a host with a key connects meanwhile.
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
# The target's limits in docs/reference/protocol.md: 4096 challenges, of 256 bytes each and their slots; 512 for each address.
places=4096 share=512
processes=16
addresses=$(few 20)

# objects: prints how many objects of 256 bytes the target's allocator has in use
objects() {
	on target "awk '\$1 ~ /^kmalloc-(rnd-[0-9]+-)?256\$/ { n += \$2 } END { print n }' /proc/slabinfo"
}
# used: prints the KiB that the target's kernel uses, without what it could reclaim
used() {
	on target "sync; echo 3 > /proc/sys/vm/drop_caches
		awk '\$1 ~ /^(SUnreclaim|KernelStack|VmallocUsed|Percpu|PageTables):\$/ { n += \$2 } END { print n }' /proc/meminfo"
}
# from N: lets c2 use its Nth address from now on.
from() {
	must on c2 "dev=\$(ip -o route get $target_address | sed 's/.* dev \([^ ]*\).*/\1/') &&
		ip address add 10.77.0.$((100 + $1))/32 dev \$dev && ip route replace $target_address dev \$dev src 10.77.0.$((100 + $1))"
}
# unproven: sends as many hellos as an address may have challenges, and proves nothing.
unproven() {
	ON_SECONDS=$((300 * slow)) on c2 "hcablk-prove hellos $target_address 7744 $id $processes $((share / processes)) < /tmp/keys"
}

# The first ones fill the caches of the connection manager and the allocator.
began=$(now_ms)
like "a host that proves nothing is challenged" "$share hellos, 0 processes failed" "$(unproven)"
first=$(objects) first_used=$(used) identifiers=$(on target 'rdma resource show cm_id | wc -l')
# A challenge counts for its address for ten seconds. So the check needs the same number of hellos again within ten
# seconds of the first one of the previous round; if the machine is too busy for that, only the host test of
# challenges.rs checks it.
for _ in 1 2 3; do
	before=$(objects) before_began=$began began=$(now_ms)
	like "further hellos of the same address are challenged" "$share hellos, 0 processes failed" "$(unproven)"
	grown=$(($(objects) - before)) took=$(($(now_ms) - before_began))
	echo "# $share and $share more from one address in $took ms: $grown more objects of 256 bytes" >&2
	if [ $took -lt 10000 ]; then
		less "further challenges replace the first ones" $grown $((share / 2))
		break
	fi
done

began=$(now_ms)
for ((n = 1; n <= addresses; n++)); do
	from $n
	ON_SECONDS=$((300 * slow)) spawn crowd c2 "hcablk-prove hellos $target_address 7744 $id $processes $((share / processes)) < /tmp/keys"
	if [ $((n % 4)) = 1 ]; then
		connect c1 vol1 --queues 2
		check "a host with a key connects and reads beside address $n" on c1 "dd if=$device of=/dev/null bs=64k count=4 iflag=direct"
		disconnect c1 vol1
	fi
	check "all hellos of address $n are challenged" join crowd
done
took=$(($(objects) - first)) took_used=$(($(used) - first_used))
echo "# $((addresses * share)) in $((($(now_ms) - began) / 1000)) s: $took objects of 256 bytes, $took_used KiB" >&2
[ "$slow" != 1 ] || less "the hellos are more than twice the target's limit" $((2 * places)) $((addresses * share))
# Others than the target also use such objects.
less "the target keeps no more challenges than its limit" $took $((places - share + 256))
less "the target takes no more memory than documented" $took_used $((1216 + 1024))
check "no connection of the hellos is left" wait_until target 60 "[ \$(rdma resource show cm_id | wc -l) -le $identifiers ]"
check "no queue pair is left" wait_until target 60 "$no_queue_pairs"
connect c1 vol1
check "a host with a key connects afterwards" on c1 "dd if=$device of=/dev/null bs=64k count=4 iflag=direct"
disconnect c1 vol1
must on target 'hcablk target unexport vol1'
