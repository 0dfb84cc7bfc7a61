#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: when a target was restarted under 32 disks of two hosts, all disks are live again within 30 s, and the writes made meanwhile succeed.
# turn: 21
# takes: 100
# waits: yes
# timeout: 1000

. "${0%/*}/../lib/lib.sh"

# Each disk is a client of its own to the target: a session with its keys, its admin queue pair and a queue pair. All of
# them notice at the same moment that the target is back.
each=16
clients="c1 c2"
volumes=$(seq -f vol%g $each | paste -sd" ")
use_keys c1 c2
# The memory of all sessions must fit the guest.
listen='hcablk target listen --buffer-mib 2 --memory-mib 256 --queue-credits 8'
must on target "$listen"
with=$(for guest in $clients; do echo "--allow $(host_id "$guest")"; done | paste -sd' ')
# export_all: exports the one drive under the names of all volumes
export_all() {
	ON_SECONDS=300 must on target "for v in $volumes; do hcablk target export \$v $drive $with > /dev/null || exit; done"
}
# all_are STATE: waits until every disk of both hosts has this state
all_are() {
	local guest
	for guest in $clients; do
		must wait_until "$guest" 120 "[ \$(cat $initiator/*/state | grep -cx $1) = $each ]"
	done
}
must on target "echo 'write through' > /sys/block/\$(basename \$(readlink -f $drive))/queue/write_cache"
export_all
for guest in $clients; do
	ON_SECONDS=300 must on "$guest" "for v in $volumes; do
		hcablk connect $target_address \$v --queues 1 --queue-depth 8 --max-io-kib 64 --eager-write 0 --ctrl-loss-tmo 600 --keep-alive-tmo 2 > /dev/null || exit; done"
done
all_are live
same "the target has the sessions of all disks" $((each * 2)) "$(on target "cat $target/volumes/*/clients | wc -l")"

for card in eth0 eth1; do
	netem target $card loss 100%
done
all_are queueing
ON_SECONDS=300 must on target "for v in $volumes; do hcablk target unexport --force \$v || exit; done && hcablk target unlisten --all && rmmod hcablk_target hcablk_core && $listen"
export_all
# Each disk has a waiting write, at its own place of the drive.
first=0
for guest in $clients; do
	must on "$guest" "for n in \$(seq $((first + 1)) $((first + each))); do yes \$n | dd of=/tmp/\$n bs=4096 count=1 iflag=fullblock 2> /dev/null; done"
	ON_SECONDS=300 spawn "writers-$guest" "$guest" "n=$first
		for v in $volumes; do
			n=\$((n + 1))
			dd if=/tmp/\$n of=/dev/\$(cat $initiator/\$v/device) bs=4096 count=1 seek=\$n oflag=direct 2> /dev/null &
			pids=\"\$pids \$!\"
		done
		failed=0
		for pid in \$pids; do wait \$pid || failed=\$((failed + 1)); done
		[ \$failed = 0 ] || { echo \$failed of them have failed; exit 1; }"
	must wait_until "$guest" 120 "[ \$(pidof dd | wc -w) = $each ]"
	first=$((first + each))
done
begin=$(now_ms)
for card in eth0 eth1; do
	netem target $card
done
all_are live
took=$(($(now_ms) - begin))
echo "# $((each * 2)) sessions, each of two queue pairs with proofs: all are live $took ms after the target became reachable"
within "all disks are live again within $((30 * slow)) s" "$took" $((30000 * slow))
for guest in $clients; do
	check "the waiting writes of $guest's disks succeed" join "writers-$guest"
done
same "the target has one session for each disk again" $((each * 2)) "$(on target "cat $target/volumes/*/clients | wc -l")"
same "no disk has an error" "$((each * 2)) 0" \
	"$(for guest in $clients; do on "$guest" "grep -h '^errors ' $initiator/*/stats"; done | awk '{ n += $2 } END { print NR, n + 0 }')"
must on c1 "for n in \$(seq $first); do yes \$n | dd bs=4096 count=1 iflag=fullblock 2> /dev/null; done > /tmp/wanted &&
	dd if=/dev/\$(cat $initiator/vol1/device) of=/tmp/got bs=4096 skip=1 count=$first iflag=direct 2> /dev/null"
check "the drive has the data of the waiting writes" on c1 'cmp /tmp/wanted /tmp/got'
for guest in $clients; do
	ON_SECONDS=300 must on "$guest" 'hcablk disconnect --all'
	same "no queue pair is left on $guest" 0 "$(queue_pairs "$guest")"
done
