#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: one host can have half of memory_mib, so that memory is left for others; a hung drive does not keep that host from other volumes.
# turn: 22
# takes: 60
# waits: yes

. "${0%/*}/../lib/lib.sh"
. "${0%/*}/../lib/shares.sh"

# Memory for six sessions, of which one host may have three.
must on target 'hcablk target listen --id 1 --buffer-mib 64 --memory-mib 100'
must on target "modprobe dm_mod && echo '0 65536 linear $drive2 0' | dmsetup create gate && dmsetup mknodes &&
	echo '0 65536 linear /dev/mapper/gate 0' | dmsetup create door && dmsetup mknodes"
export_volume hung /dev/mapper/door c1
for n in 1 2 3 4; do
	export_volume vol$n "$drive" c1 c2
done
least_of 128
# Shared buffers come on top: this test counts none of them.
must on target "echo $(mib_for $((6 * least))) > $port/memory_mib"
share=$(($(on target "cat $port/memory_mib") * 512))
connect c1 hung --queues 1 --io-timeout 600
hung=$device
connect c1 vol1 --queues 1
connect c1 vol2 --queues 1
like "a fourth session of the host is refused" "memory|Cannot allocate" \
	"$(on c1 "hcablk connect $target_address vol3 --queues 1" 2>&1)"
check "the target's log gives the reason, and the host's share" \
	wait_log target 60 "refused .* volume vol3: it needs more than is left of its host's share.* $((least >> 10)) KiB needed; of $share KiB,"
for n in 1 2 3; do
	connect c2 vol$n --queues 1
done
pass "another host connects with the other half"
less "the sessions of either host end on a workqueue of their own" 1 "$(on target "cat /proc/[0-9]*/comm | grep -c '^kworker/R-hcablk_ends_'")"
same "six sessions have their own buffers" $((6 * least)) "$(memory_of reserved)"
disconnect c2 vol3

# Memory that a drive holds counts toward the limit, but not toward the host's share once its session has ended.
must on target 'dmsetup suspend --nolockfs gate'
spawn held c1 "dd if=/dev/zero of=$hung bs=64k count=1 oflag=direct conv=notrunc status=none"
must drive_holds write
must on c1 'hcablk disconnect --force hung'
refuse "the write that the drive held fails" join held
same "the session of the hung drive still exists" 1 "$(on target "wc -l < $target/volumes/hung/clients")"
check "the host connects to a healthy volume while the drive hangs" wait_until c1 180 \
	"hcablk connect $target_address vol3 --queues 1"
same "the hung drive has not finished" 1 "$(on target "wc -l < $target/volumes/hung/clients")"
check "the memory that the hung drive holds is in the account" [ "$(memory_of reserved)" -gt $((5 * least)) ]
must on target 'dmsetup resume gate'
must wait_until target 60 "[ -z \"\$(cat $target/volumes/hung/clients)\" ]"
check "the memory is freed when the drive has finished" wait_until target 60 "awk '\$1 == \"reserved\" { exit \$2 != $((5 * least)) }' $port/memory"
like "the host is still limited to its share" "memory|Cannot allocate" "$(on c1 "hcablk connect $target_address vol4 --queues 1" 2>&1)"
must on c1 'hcablk disconnect --all'
must on c2 'hcablk disconnect --all'
must wait_until target 60 "awk '\$1 == \"used\" { exit \$2 != 0 }' $port/memory"
pass "nothing is used when the sessions have ended"
must on target 'for n in hung vol1 vol2 vol3 vol4; do hcablk target unexport $n || exit; done; dmsetup remove door && dmsetup remove gate'
