#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: each disk has workqueues of its own, so that when memory is short no disk's work waits for another's; they go with it.
# turn: 11
# takes: 5
# guests: c1

. "${0%/*}/../lib/lib.sh"

must on c1 'modprobe hcablk'
# Who does a queue's work when there is no memory for other workers.
rescuers() {
	on c1 "cat /proc/[0-9]*/comm | grep -c '^kworker/R-hcablk_$1'"
}
for queue in end again; do
	must on c1 "mkdir $initiator/one"
	first=$(rescuers $queue)
	must on c1 "mkdir $initiator/two"
	same "a disk has one of its own for its queue '$queue'" $((first + 1)) "$(rescuers $queue)"
	must on c1 "rmdir $initiator/one $initiator/two"
	check "which goes with it" wait_until c1 30 "[ \$(cat /proc/[0-9]*/comm | grep -c '^kworker/R-hcablk_$queue') = $((first - 1)) ]"
done
check "the module unloads" on c1 'rmmod hcablk hcablk_core'
