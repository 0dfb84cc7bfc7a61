#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: over lost connections and replaced queue pairs, no write reaches the drive after its retry, however the drive delays writes.
# turn: 5
# takes: 180
# waits: yes
# skips: siw debug
# timeout: 7200

. "${0%/*}/../lib/lib.sh"
. "${0%/*}/../lib/peer.sh"

[ "$rdma" = rxe ] || skip "the library of the peer that takes sessions over speaks soft-RoCE only"

# The number of requests that are issued again: the delayed first issue of each could overtake the second. More: make soak.
wanted=${HCABLK_REISSUES:-$(few 300)}
# The drive delays one of eight writes by up to this many milliseconds: longer than io_timeout.
hold=2500

on target 'modprobe -q -n nbd' || skip "this kernel has no nbd"
must on target 'modprobe nbd nbds_max=1'
ON_SECONDS=7000 spawn drive target "exec hcablk-reorder /dev/nbd0 16 ${HCABLK_SEED:-1} $hold"
must wait_until target 30 '[ "$(cat /sys/block/nbd0/size)" = 32768 ]'
export_volume vol1 /dev/nbd0 c1
connect c1 vol1 --ctrl-loss-tmo -1 --io-timeout 1 --connect-timeout 30 --queues 2
same "the drive has no volatile cache" "write through" "$(on c1 "cat /sys/block/$disk/queue/write_cache")"
ON_SECONDS=7000 spawn writers c1 "exec hcablk-versions write $device 32 > /tmp/versions"

reissued() {
	stat_of c1 $initiator/vol1 retries
}
is_live() {
	wait_until c1 120 "[ \$(cat $initiator/vol1/state) = live ]"
}
# take_over: requests the session's next epoch: the target ends the session while the drive has its writes.
take_over() {
	local session epoch
	read -r session epoch <<< "$(on c1 "cat $initiator/vol1/session")"
	[ -n "$epoch" ] || return
	on c2 "hcablk-peer connect $target_address 7744 $(request 2 2 16 $admin 1 $((16#$session)) $((epoch + 1))) close" > /dev/null 2>&1
}
cut_link() {
	must vm link-down target 0
	must wait_until c1 60 "[ \$(cat $initiator/vol1/state) = queueing ]"
	must vm link-up target 0
}
faults=0 cuts=0
while must is_live && [ "$(reissued)" -lt "$wanted" ] && kill -0 "${_jobs[writers]}" 2> /dev/null; do
	# Wait until the writers have requests under way again.
	before=$(on c1 "awk '{ print \$5 }' /sys/block/$disk/stat")
	wait_until c1 20 "awk '{ exit !(\$5 > $before + 16) }' /sys/block/$disk/stat" || break
	faults=$((faults + 1))
	if [ $((RANDOM % 12)) = 0 ] || [ $faults = 3 ]; then
		cuts=$((cuts + 1))
		cut_link
	else
		take_over
	fi
done
echo "# $faults faults, $cuts of them cuts, $(reissued) requests issued again"
less "connections were lost, and requests issued again" $((wanted - 1)) "$(reissued)"
# The drive delays writes for longer than io_timeout often enough.
check "some queue pairs were replaced" wait_until c1 120 "awk '\$1 == \"replaced_queues\" { exit !(\$2 > 0) }' $initiator/vol1/stats"
must on c1 'touch /tmp/stop'
check "readers never see data older than an acknowledged write" join writers
same "no request has failed" 0 "$(stat_of c1 $initiator/vol1 errors)"
versions=$(on c1 'cat /tmp/versions; rm /tmp/versions /tmp/stop')
disconnect c1 vol1
must on target 'hcablk target unexport vol1'
check "the drive has no data older than an acknowledged write" on target "echo '$versions' | hcablk-versions check /dev/nbd0"
must on target 'killall hcablk-reorder'
check "the drive got no write while it had an earlier write of the same place" join drive
must wait_until target 30 'rmmod nbd'
