#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: while a drive hangs, all queue pairs of an evicted or forbidden host stop working, including one that is being replaced, and other hosts can be allowed and forbidden.
# turn: 7
# takes: 15
# waits: yes
# skips: siw

. "${0%/*}/../lib/lib.sh"

[ "$rdma" = rxe ] || skip "the states of queue pairs are soft-RoCE's"
host=$(host_id c1)
# A command that prints how many queue pairs of the target can take a request.
working="rdma resource show qp | grep -v 'type GSI' | grep -c 'state RTS'"
none_works="[ \$($working) = 0 ]"

must on target "modprobe dm_mod && printf '0 65536 linear $drive 0\n' | dmsetup create gate && dmsetup mknodes &&
	echo '0 65536 linear /dev/mapper/gate 0' | dmsetup create door && dmsetup mknodes"
export_volume vol1 /dev/mapper/door c1
export_volume well "$drive2" c2
hold() {
	connect c1 vol1 --queues 2 --io-timeout "$1" --connect-timeout 60
	must on target 'dmsetup suspend --nolockfs gate'
	spawn held c1 "dd if=/dev/zero of=$device bs=64k count=1 oflag=direct conv=notrunc status=none"
	must drive_holds write
}

hold $((4 * slow))
# The admin queue pair and the other data queue pair are left.
must wait_until target 60 "[ \$($working) = 2 ]"
pass "a queue pair is being replaced while its drive hangs"
refuse "an eviction with a timeout fails while the drive has a write of the host" on target "hcablk target evict --timeout 2 vol1 $host"
check "no queue pair of the evicted host works any more" wait_until target 20 "$none_works"
same "the host is evicted and still draining" "$host draining" "$(on target "cat $target/volumes/vol1/evicted")"
must on target 'dmsetup resume gate'
check "the host has no session left when the drive has finished" wait_until target 60 "[ -z \"\$(cat $target/volumes/vol1/clients)\" ]"
refuse "the write of the evicted host has failed" join held
must on c1 'hcablk disconnect --if-exists --force vol1'
must on target "hcablk target admit vol1 $host"

hold 600
ON_SECONDS=200 spawn forbidding target "exec hcablk target forbid vol1 $host"
check "a host is forbidden while the drive hangs" wait_until target 30 "[ ! -e $target/volumes/vol1/hosts/$host ]"
check "no queue pair of the forbidden host works any more" wait_until target 20 "$none_works"
ON_SECONDS=30
check "another host can be allowed meanwhile" on target "hcablk target allow well 0c0ffee0-0000-4000-8000-000000000001"
check "another host can be forbidden meanwhile" on target "hcablk target forbid well 0c0ffee0-0000-4000-8000-000000000001"
ON_SECONDS=120
check "the command waits for the drive" on target '[ -n "$(pidof hcablk)" ]'
same "the volume still has the forbidden host as a client" "$host" "$(on target "cut -d' ' -f1 $target/volumes/vol1/clients")"
must on target 'dmsetup resume gate'
check "the command ends when the drive has finished" join forbidding
same "the volume has no client left" 0 "$(on target "wc -l < $target/volumes/vol1/clients")"
refuse "the write of the forbidden host has failed" join held
must on c1 'hcablk disconnect --if-exists --force vol1'
must on target 'hcablk target unexport vol1 && hcablk target unexport well && dmsetup remove door && dmsetup remove gate'
