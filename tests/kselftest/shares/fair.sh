#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: under overload a client that wants all of the target's buffers leaves another client its fair share.
# tier: heart
# turn: 1
# takes: 40
# alone: it compares shares of two clients

. "${0%/*}/../lib/lib.sh"
. "${0%/*}/../lib/shares.sh"

# With a drive that takes a second for each write, equal buffers mean equal throughput. Each of the two clients has 3 MiB of its
# own on soft-RoCE (2 of them granted, which these writes do not use), and 8 are shared. Both always want more than half of these,
# the greedy client twice as much as the other: in order of arrival the other would get a third.
must on target 'hcablk target listen --id 1 --buffer-mib 16 --memory-mib 100'
slow_drive slow 1000
export_volume vol1 /dev/mapper/slow c1 c2
least_of 128
least_of_other=$least
least_of 256
least=$((least + least_of_other))
# A quarter of the limit is not shared.
must on target "echo $(((($(mib_for $least) + 8) * 4 + 2) / 3)) > $port/memory_mib"
connect c1 vol1 --queues 1 --queue-depth 256
connect c2 vol1 --queues 1 --queue-depth 128
same "both clients have their own buffers" $least "$(memory_of reserved)"

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
pass "the greedy client waits for buffers"
first=$(class_of 32768 borrowed)
# A write takes two buffers: of an odd number one stays free.
less "the greedy client has all shared buffers" $(($(class_of 32768 total) - 2)) "$first"
load other c2 2 256M
must wait_until c2 60 "awk '\$1 == \"writes\" { exit !(\$2 > 40) }' $initiator/vol1/stats"
# The drive completes writes in bursts of a second, each of some 70, and the counters of the two clients are read one after the
# other: over ten bursts that does not matter.
greedy=$(writes c1) other=$(writes c2)
must wait_until c1 120 "awk '\$1 == \"writes\" { exit !(\$2 > $greedy + 700) }' $initiator/vol1/stats"
greedy=$(($(writes c1) - greedy)) other=$(($(writes c2) - other))
echo "# writes meanwhile: $greedy of the greedy client, $other of the other; shares:" >&2
on target "cat $port/shares $port/memory" >&2
# The fair share of each is one half.
less "the other client gets at least four fifths of its fair share ($other of $((greedy + other)))" $((2 * (greedy + other) / 5)) "$other"
for guest in c1 c2; do
	must on $guest 'killall -q -INT fio; true'
done
join greedy || true
join other || true
for guest in c1 c2; do
	same "$guest: no errors" 0 "$(stat_of $guest $initiator/vol1 errors)"
done
must wait_until target 60 "awk '\$1 == \"waiting\" { exit \$2 != 0 }' $port/memory"
pass "no request waits for buffers any more"
for guest in c1 c2; do
	disconnect $guest vol1
done
must on target 'hcablk target unexport vol1 && dmsetup remove slow'
