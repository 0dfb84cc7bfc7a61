#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: under overload a client that wants all of the target's buffers leaves another one its fair share of them.
# tier: heart
# turn: 1
# takes: 40
# alone: it compares shares of two clients

. "${0%/*}/../lib/lib.sh"
. "${0%/*}/../lib/shares.sh"

# With a drive that takes a second for each write, whoever has as many buffers gets as much done. Each of the two
# has 3 MiB for itself on soft-RoCE (2 of them granted, where these writes do not go), and 8 are shared. Both want more than half
# of these all the time, the greedy one twice as much as the other: by the order in which they ask the other would have a third.
must on target 'hcablk target listen --id 1 --buffer-mib 16 --memory-mib 100'
slow_drive slow 1000
export_volume vol1 /dev/mapper/slow c1 c2
least_of 128
least_of_other=$least
least_of 256
least=$((least + least_of_other))
must on target "echo $(($(mib_for $least) + 8)) > $port/memory_mib"
connect c1 vol1 --queues 1 --queue-depth 256
connect c2 vol1 --queues 1 --queue-depth 128
same "both have their reservation" $least "$(memory_of reserved)"

# load NAME GUEST JOBS OFFSET
load() {
	ON_SECONDS=330 spawn "$1" "$2" "fio --name=l --filename=$device --direct=1 --ioengine=libaio --rw=randwrite --bs=64k \
		--iodepth=64 --numjobs=$3 --offset=$4 --size=200M --time_based --runtime=300 --norandommap 2>&1"
}
# writes GUEST
writes() {
	stat_of "$1" $initiator/vol1 writes
}

load greedy c1 4 0
must wait_until target 60 "awk '\$1 == \"waiting\" { exit !\$2 }' $port/memory"
pass "the greedy one waits for buffers"
first=$(class_of 32768 borrowed)
# Each write takes two: of an odd number one is left.
less "and has all that are shared" $(($(class_of 32768 total) - 2)) "$first"
load other c2 2 256M
must wait_until c2 60 "awk '\$1 == \"writes\" { exit !(\$2 > 40) }' $initiator/vol1/stats"
# The drive completes writes in bursts of a second, each of some 70, and the two are read one after the other: over ten
# bursts that does not count.
greedy=$(writes c1) other=$(writes c2)
must wait_until c1 120 "awk '\$1 == \"writes\" { exit !(\$2 > $greedy + 700) }' $initiator/vol1/stats"
greedy=$(($(writes c1) - greedy)) other=$(($(writes c2) - other))
echo "# of what was written meanwhile the greedy one has $greedy, the other $other; shares:" >&2
on target "cat $port/shares $port/memory" >&2
# The fair share of each is the half.
less "the other gets at least four fifths of its fair share ($other of $((greedy + other)))" $((2 * (greedy + other) / 5)) "$other"
for guest in c1 c2; do
	must on $guest 'killall -q -INT fio; true'
done
join greedy || true
join other || true
for guest in c1 c2; do
	same "$guest: no errors" 0 "$(stat_of $guest $initiator/vol1 errors)"
done
must wait_until target 60 "awk '\$1 == \"waiting\" { exit \$2 != 0 }' $port/memory"
pass "nobody waits any more"
for guest in c1 c2; do
	disconnect $guest vol1
done
must on target 'hcablk target unexport vol1 && dmsetup remove slow'
