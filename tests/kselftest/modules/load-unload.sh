#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: the modules load, unload and load again, and leave nothing behind.
# tier: heart
# turn: 0
# takes: 10

. "${0%/*}/../lib/lib.sh"

for guest in c1 target; do
	module=hcablk
	[ $guest = c1 ] || module=hcablk_target
	for round in 1 2 3; do
		check "$guest, round $round: $module loads" on $guest "modprobe $module"
		check "$guest, round $round: its configfs directory exists" on $guest "[ -d /sys/kernel/config/$module ]"
		check "$guest, round $round: $module unloads" on $guest "rmmod $module"
		refuse "$guest, round $round: its configfs directory is gone" on $guest "[ -d /sys/kernel/config/$module ]"
		check "$guest, round $round: the core unloads" on $guest 'rmmod hcablk_core'
	done
	same "$guest: no queue pairs are left" 0 "$(queue_pairs $guest)"
done

check "both modules load into one kernel" on target 'modprobe -a hcablk hcablk_target'
refuse "the core does not unload under both modules" on target 'rmmod hcablk_core'
check "the modules unload in any order" on target 'rmmod hcablk hcablk_target hcablk_core'

check "modinfo shows description and license" on c1 'modinfo hcablk | grep -q ^description: &&
	modinfo -F license hcablk | grep -qx GPL && modinfo hcablk_target | grep -q ^description:'
other_lines() {
	in_log c1 hcablk | sed -e /hcablk-test/d -e /taint/d
}
silent "loading logs nothing but the taint" other_lines
