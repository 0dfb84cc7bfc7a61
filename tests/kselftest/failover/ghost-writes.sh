#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: a request that is issued again over another path reaches the drive after its first issue over the lost path, however the drive delays writes.
# tier: heart
# turn: 0
# takes: 80
# waits: yes
# skips: debug
# timeout: 7200

. "${0%/*}/../lib/lib.sh"
. "${0%/*}/../lib/multi.sh"

# The number of requests that are issued again over the other path: remains of the first issue could overtake each. More: make soak.
wanted=${HCABLK_REISSUES:-$(few 120)}
# The drive delays one of eight writes by up to this many milliseconds: much longer than the loss of a path takes at
# keep_alive_tmo 1, so that the drive still has writes of the lost path then.
hold=6000

on target 'modprobe -q -n nbd' || skip "this kernel has no nbd"
two_cards 1 target c1
target_address=10.77.1.1
must on target 'modprobe nbd nbds_max=1'
ON_SECONDS=7000 spawn drive target "exec hcablk-reorder /dev/nbd0 16 ${HCABLK_SEED:-1} $hold"
must wait_until target 30 '[ "$(cat /sys/block/nbd0/size)" = 32768 ]'
export_volume vol1 /dev/nbd0 c1
connect c1 vol1 --ctrl-loss-tmo -1 --queues 2 --keep-alive-tmo 1
add_path c1 vol1 1 10.77.2.1
must disk_is c1 vol1 live
ON_SECONDS=7000 spawn writers c1 "exec hcablk-versions write $device 32 > /tmp/versions"

faults=0 before=0
while [ "$(stat_of c1 $initiator/vol1 retries)" -lt "$wanted" ] && kill -0 "${_jobs[writers]}" 2> /dev/null; do
	# Wait until the writers have requests under way again.
	before=$(on c1 "awk '{ print \$5 }' /sys/block/$disk/stat")
	wait_until c1 20 "awk '{ exit !(\$5 > $before + 16) }' /sys/block/$disk/stat" || break
	faults=$((faults + 1))
	card=path$((1 + RANDOM % 2))
	cut $card
	must disk_is c1 vol1 degraded
	mend $card
	must disk_is c1 vol1 live
done
echo "# $faults cuts, $(stat_of c1 $initiator/vol1 retries) requests issued again"
less "paths were lost, and requests issued again" $((wanted - 1)) "$(stat_of c1 $initiator/vol1 retries)"
must on c1 'touch /tmp/stop'
check "readers never see data older than an acknowledged write" join writers
same "no request has failed" 0 "$(stat_of c1 $initiator/vol1 errors)"
versions=$(on c1 'cat /tmp/versions; rm /tmp/versions /tmp/stop')
must on c1 "echo 0 > $initiator/vol1/paths/1/enable && rmdir $initiator/vol1/paths/1"
disconnect c1 vol1
must on target 'hcablk target unexport vol1'
check "the drive has no data older than an acknowledged write" on target "echo '$versions' | hcablk-versions check /dev/nbd0"
must on target 'killall hcablk-reorder'
check "the drive got no write while it had an earlier write of the same place" join drive
must wait_until target 30 'rmmod nbd'
