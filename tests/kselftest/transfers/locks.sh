#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: a request takes one of our locks when issued and one when answered; at the target it takes two, or three if its data needs an RDMA READ.
# turn: 8
# takes: 5
# skips: stock
# timeout: 480

. "${0%/*}/../lib/lib.sh"

on target '[ -e /proc/lock_stat ]' || skip "this kernel does not count locks"
# Counting costs time, so the kernel counts only on demand.
for guest in c1 target; do
	must on $guest 'echo 1 > /proc/sys/kernel/lock_stat'
done

# taken GUEST: prints how often our locks were taken, without those of admin queue pairs, which are taken some times a second,
# idle or not
taken() {
	on "$1" 'cat /proc/lock_stat' | awk '
		/hcablk_admin:/ { next }
		/^ *&?hcablk_[a-z_]*:/ { print "# ", $1, $9 > "/dev/stderr"; n += $9 }
		END { print n + 0 }'
}

# locks LOAD MOST: LOAD takes at most MOST tenths of a lock per request at the target, and two locks at the initiator.
locks() {
	local load=$1 most=$2 guest send_waits
	local -A count
	for guest in c1 target; do
		must on $guest 'echo 0 > /proc/lock_stat'
	done
	send_waits=$(stat_of c1 $initiator/vol1 send_waits)
	must on c1 "fio --output-format=terse --name=l --filename=$device --direct=1 --ioengine=libaio --rw=$load \
		--iodepth=16 --number_ios=$n --size=256m --randrepeat=1 > /dev/null"
	for guest in c1 target; do
		count[$guest]=$(taken $guest)
		echo "# $load at $guest: ${count[$guest]} locks for $n requests" >&2
		# Each request takes a lock in at least one place: fewer would mean that locks are not counted.
		less "$load: $guest's locks are counted" $((n - 1)) "${count[$guest]}"
	done
	# The first requests take a few more. So does each request whose own send completes after its response; how many do
	# depends on the machine.
	send_waits=$(($(stat_of c1 $initiator/vol1 send_waits) - send_waits))
	echo "# $load at c1: $send_waits send_waits" >&2
	less "$load: a request takes at most two locks at the initiator" "${count[c1]}" $((n * 22 / 10 + send_waits))
	less "$load: a request takes at most $most tenths of a lock at the target" "${count[target]}" $((n * most / 10))
}

share c1
n=200
locks "randread --bs=4k" 24
locks "randread --bs=64k" 24
locks "randwrite --bs=4k" 24
# The completion of the RDMA READ, and those of responses meanwhile, are handled one by one.
locks "randwrite --bs=64k" 30
for guest in c1 target; do
	must on $guest 'echo 0 > /proc/sys/kernel/lock_stat && echo 0 > /proc/lock_stat'
done
