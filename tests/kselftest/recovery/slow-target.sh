#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: a path is reconnected, and soon, even if the target needs longer to accept all its queue pairs than the first attempts wait.
# turn: 18
# takes: 55
# waits: yes

. "${0%/*}/../lib/lib.sh"

is_live() {
	wait_until c1 "$1" "[ \$(cat $initiator/vol1/state) = live ]"
}
# Prints the epoch: it counts attempts.
epoch() {
	on c1 "cut -d' ' -f2 $initiator/vol1/session"
}
# lose: the disk loses its connection
lose() {
	must on target 'hcablk target unexport --force vol1'
	must wait_until c1 60 "[ \$(cat $initiator/vol1/state) = queueing ]"
}

for how in names keys; do
	[ $how = names ] || use_keys c1
	export_volume vol1 "$drive" c1
	# The first attempts wait for half of this time.
	connect c1 vol1 --ctrl-loss-tmo -1 --connect-timeout 4
	first=$(epoch)
	# One response is in time, two in a row are not.
	netem target eth0 delay 1200ms
	lose
	export_volume vol1 "$drive" c1
	check "with $how: later attempts wait longer, until the disk is connected" is_live 150
	last=$(epoch)
	netem target eth0
	# Seven attempts without patience, one with it, and a few that wait longer and longer.
	less "with $how: few attempts were needed" $((last - first)) 24
	check "with $how: the disk works" on c1 "hcablk-scatter $device random 178 4"
	same "with $how: no request has failed" 0 "$(stat_of c1 $initiator/vol1 errors)"

	# The delay is gone: attempts wait as at first.
	lose
	export_volume vol1 "$drive" c1
	check "with $how: the disk is connected after another loss" is_live 60
	disconnect c1 vol1
	must on target 'hcablk target unexport vol1'
done
