#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: each disk has its own workqueues, so that no disk's work waits for another's when memory is short; they are freed with the disk.
# turn: 11
# takes: 5
# guests: c1

. "${0%/*}/../lib/lib.sh"

must on c1 'modprobe hcablk'
# Counts the rescuers, threads that do a workqueue's work when no memory is left for other workers.
rescuers() {
	on c1 "cat /proc/[0-9]*/comm | grep -c '^kworker/R-hcablk_$1'"
}
for queue in end again; do
	must on c1 "mkdir $initiator/one"
	first=$(rescuers $queue)
	must on c1 "mkdir $initiator/two"
	same "a disk has a rescuer of its own for its workqueue '$queue'" $((first + 1)) "$(rescuers $queue)"
	must on c1 "rmdir $initiator/one $initiator/two"
	check "the rescuer of workqueue '$queue' ends with its disk" wait_until c1 30 "[ \$(cat /proc/[0-9]*/comm | grep -c '^kworker/R-hcablk_$queue') = $((first - 1)) ]"
done
check "the module unloads" on c1 'rmmod hcablk hcablk_core'
