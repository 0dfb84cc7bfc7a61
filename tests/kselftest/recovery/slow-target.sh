#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: a target that takes longer to let all queue pairs of a path connect than an attempt takes at first is connected again all the same, and soon.
# turn: 18
# takes: 55
# waits: yes

. "${0%/*}/../lib/lib.sh"

is_live() {
	wait_until c1 "$1" "[ \$(cat $initiator/vol1/state) = live ]"
}
# Each attempt has the next one.
epoch() {
	on c1 "cut -d' ' -f2 $initiator/vol1/session"
}
# lose: the disk waits for a connection
lose() {
	must on target 'hcablk target unexport --force vol1'
	must wait_until c1 60 "[ \$(cat $initiator/vol1/state) = queueing ]"
}

for how in names keys; do
	[ $how = names ] || use_keys c1
	export_volume vol1 "$drive" c1
	# The first attempts take half of it.
	connect c1 vol1 --ctrl-loss-tmo -1 --connect-timeout 4
	first=$(epoch)
	# One answer comes in time, two after each other do not.
	netem target eth0 delay 1200ms
	lose
	export_volume vol1 "$drive" c1
	check "by $how: the next attempts take longer, until it is connected again" is_live 150
	last=$(epoch)
	netem target eth0
	# Seven that do not wait for the answer, one that does, and few that take longer and longer.
	less "by $how: it took few attempts" $((last - first)) 24
	check "by $how: and serves" on c1 "hcablk-scatter $device random 178 4"
	same "by $how: no request has failed" 0 "$(stat_of c1 $initiator/vol1 errors)"

	# As before, from then on.
	lose
	export_volume vol1 "$drive" c1
	check "by $how: the next time, too" is_live 60
	disconnect c1 vol1
	must on target 'hcablk target unexport vol1'
done
