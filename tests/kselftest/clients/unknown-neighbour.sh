#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: a connection is made in time although the neighbour's address is unknown, whenever the neighbour's answer arrives.
# turn: 13
# takes: 50
# waits: yes
# guests: target c1

. "${0%/*}/../lib/lib.sh"

# The kernel can miss an answer that arrives while it looks up the neighbour, and then waits for its full timeout. Here
# that happens in one try of many, and in more on a busy machine.
must export_volume vol1 "$drive" c1
must connect c1 vol1
must disconnect c1 vol1
rounds=40
late=$(ON_SECONDS=900 on c1 "
	late=0
	for i in \$(seq $rounds); do
		ip neigh flush all
		begin=\$(cut -d. -f1 /proc/uptime)
		hcablk connect 10.77.0.1 vol1 --queues 1 > /dev/null || { echo failed; exit; }
		[ \$((\$(cut -d. -f1 /proc/uptime) - begin)) -lt $((6 * slow)) ] || late=\$((late + 1))
		hcablk disconnect vol1 > /dev/null || { echo still connected; exit; }
	done
	echo \$late")
same "$rounds connections are made, none of them late" 0 "$late"
