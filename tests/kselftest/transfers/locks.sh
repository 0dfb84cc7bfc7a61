#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: a request takes one lock of ours when it is issued and one when it is answered; and two at the target, or three if its data is fetched.
# turn: 8
# takes: 5
# skips: stock
# timeout: 480

. "${0%/*}/../lib/lib.sh"

on target '[ -e /proc/lock_stat ]' || skip "this kernel does not count locks"
# It costs something, so the kernel does it when told to only.
for guest in c1 target; do
	must on $guest 'echo 1 > /proc/sys/kernel/lock_stat'
done

# taken GUEST: how often locks of ours were; not those of admin queue pairs, which are taken some times a second, load or not
taken() {
	on "$1" 'cat /proc/lock_stat' | awk '
		/hcablk_admin:/ { next }
		/^ *&?hcablk_[a-z_]*:/ { print "# ", $1, $9 > "/dev/stderr"; n += $9 }
		END { print n + 0 }'
}

# locks LOAD MOST: at the target MOST tenths of a lock are taken for each of LOAD's requests; here two.
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
		# Each is taken in one place at least: else they are not counted.
		less "$load: $guest's locks are counted" $((n - 1)) "${count[$guest]}"
	done
	# The beginning takes a few more. So may each request that ends after its answer, when what
	# had been sent with it is out; how many do is a matter of the machine.
	send_waits=$(($(stat_of c1 $initiator/vol1 send_waits) - send_waits))
	echo "# $load at c1: $send_waits send_waits" >&2
	less "$load: two locks a request at the initiator" "${count[c1]}" $((n * 22 / 10 + send_waits))
	less "$load: at most $most tenths of a lock a request at the target" "${count[target]}" $((n * most / 10))
}

share c1
n=200
locks "randread --bs=4k" 24
locks "randread --bs=64k" 24
locks "randwrite --bs=4k" 24
# That the data was fetched is waited for, and so are completions of answers meanwhile, each by itself.
locks "randwrite --bs=64k" 30
for guest in c1 target; do
	must on $guest 'echo 0 > /proc/sys/kernel/lock_stat && echo 0 > /proc/lock_stat'
done
