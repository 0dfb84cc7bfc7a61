#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: reconnecting a lost disk, replacing a queue pair and ending a session allocate no page for which the kernel might wait for that disk.
# turn: 11
# takes: 30
# waits: yes
# skips: siw

. "${0%/*}/../lib/lib.sh"
. "${0%/*}/../lib/multi.sh"

[ "$rdma" != siw ] || skip "TCP notices a silent peer only when a request gets no response in time"

tracing=/sys/kernel/tracing
two_cards 1 target c1
target_address=10.77.1.1
must on target "echo 'write through' > /sys/block/\$(basename \$(readlink -f $drive))/queue/write_cache"
must on target "modprobe dm_mod && echo '0 65536 linear $drive 0' | dmsetup create gate && dmsetup mknodes"
export_volume vol1 /dev/mapper/gate --wwid=6f0c2b62-5f5e-4c0e-9d57-0b8f3e9b0a47 c1
connect c1 vol1 --ctrl-loss-tmo 600 --keep-alive-tmo $((1 * slow)) --queues 2 --io-timeout $((3 * slow))
add_path c1 vol1 1 10.77.2.1
must disk_is c1 vol1 live

# Traces the pages that kernel workers allocate, with their GFP flags and stacks; programs' own allocations do not count.
must on c1 "cd $tracing && echo 16384 > buffer_size_kb && echo 1 > options/stacktrace && echo 'comm ~ \"kworker*\"' > events/kmem/mm_page_alloc/filter &&
	echo > trace && echo 1 > events/kmem/mm_page_alloc/enable"
for _ in 1 2; do
	cut path1
	must disk_is c1 vol1 degraded
	cut path2
	must disk_is c1 vol1 queueing
	mend path1
	mend path2
	disk_is c1 vol1 live || {
		on c1 "cat $initiator/vol1/paths/1/error; cat /sys/class/infiniband/${rdma}2/ports/1/hw_counters/send_err; ip neigh; rdma resource show qp | grep GSI" >&2
		on target "cat /sys/class/infiniband/${rdma}2/ports/1/hw_counters/send_err; rdma resource show qp | grep GSI" >&2
		die "path 1 is not back"
	}
done
must on target 'dmsetup suspend --nolockfs gate'
spawn held c1 "dd if=/dev/zero of=$device bs=64k count=1 oflag=direct"
must wait_until c1 60 "[ \$(rdma resource show qp | grep -vc 'type GSI') -gt 6 ]"
must on target 'dmsetup resume gate'
must join held
check "a queue pair was replaced" wait_until c1 60 "awk '\$1 == \"replaced_queues\" { exit !(\$2 > 0) }' $initiator/vol1/stats"
must on c1 "echo 0 > $tracing/events/kmem/mm_page_alloc/enable"
# Counts allocations of the driver, and of verbs on its behalf, without I/O and with I/O, and prints the first of the latter.
# Rust's symbols contain the names of their crates. The stack follows its event, but not directly: events of other processors may
# be between them, and those of an interrupt with their own stacks.
allocated=$(on c1 "awk '
	function settle(event, stack) {
		if (!own) return
		own = 0
		if (event ~ /gfp_flags=[^ ]*(GFP_KERNEL|GFP_USER|GFP_HIGHUSER|GFP_NOFS|__GFP_IO)/) { with++; if (with == 1) first = event stack }
		else without++
	}
	/mm_page_alloc:/ { settle(event, stack); event = \"\"; waiting[\$1, ++depth[\$1]] = \$0; next }
	/<stack trace>/ { settle(event, stack); event = depth[\$1] ? waiting[\$1, depth[\$1]--] : \"\"; stack = \"\"; next }
	/^ => / { stack = stack \" \" \$2; if (event && \$2 ~ /^_RNv.*(9initiator|11hcablk_core)|^hcablk_c_/) own = 1 }
	END { settle(event, stack); print without + 0, with + 0; if (with) print first }' $tracing/trace")
read -r without with <<< "$allocated"
echo "# page allocations: $without without I/O, $with with I/O"
less "reconnecting allocated pages" 0 "$without"
same "no page was allocated with I/O" "$without 0" "$allocated"
same "no request has failed" 0 "$(stat_of c1 $initiator/vol1 errors)"
must on c1 "cd $tracing && echo 0 > options/stacktrace && echo 0 > events/kmem/mm_page_alloc/filter && echo > trace"
disconnect c1 vol1
must on target 'hcablk target unexport vol1 && dmsetup remove gate'
