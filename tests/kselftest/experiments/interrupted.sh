#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: an interrupted `hcablk bench` leaves both machines as they were; when the client's part is killed, the target's part restores the target.
# turn: 14
# takes: 90
# timeout: 900
# skips: siw debug

. "${0%/*}/../lib/lib.sh"
. "${0%/*}/../lib/experiments.sh"

[ "$rdma" != siw ] || skip "most data paths that the selftest checks do not exist on iWARP"
on target '[ ! -e /sys/kernel/debug/kmemleak ]' || skip "the selftest takes too long on a debug kernel"

# begin_load: starts a run in the background, and waits until its load is under way
begin_load() {
	serve
	ON_SECONDS=900 spawn run c1 "rm -rf /tmp/stopped; hcablk-bench selftest --address $target_address --output /tmp/stopped --through '$through' \
		--drive $drive --only load --span 128 --load 128 & echo \$! > /tmp/pid; wait \$!; echo \$? > /tmp/code"
	must wait_until c1 60 "awk '{ exit !(\$5 > 20) }' /sys/block/hcablk0/stat"
}
serve
remember
# The target's part that nobody used.
must on c1 ": | $through"
must join part

begin_load
must on c1 'kill -TERM $(cat /tmp/pid)'
check "an interrupted run ends" wait_until c1 90 '[ -s /tmp/code ]'
must join run
same "an interrupted run exits with code 130" 130 "$(on c1 'cat /tmp/code')"
must on c1 'rm /tmp/code /tmp/pid'
unchanged "interrupted"
check "an interrupted run leaves no folder" on c1 '[ ! -e /tmp/stopped ]'

begin_load
must on c1 'kill -KILL $(cat /tmp/pid)'
join run
check "the target's part ends when the client's part is killed" join part
must wait_until target 30 "$no_queue_pairs"
same "the target's part restores the target when the client's part is killed" "$server" "$(footprint target)"
# The killed part cannot undo its changes: its disk is left, and its load ends with the connection.
must wait_until c1 60 '! pidof fio'
must on c1 'hcablk disconnect hcablk-bench --force --if-exists'
