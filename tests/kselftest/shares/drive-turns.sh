#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: while hundreds of one host's requests wait for a drive, another host's request waits for about one round of them, not for all.
# turn: 18
# takes: 90
# timeout: 480

. "${0%/*}/../lib/lib.sh"

# How many requests of a volume its workqueue runs at a time: IO_WORK_MAX.
bound=256
jobs=4 each=350 rounds=8

# A read that misses the page cache takes the drive two seconds, and a worker waits for it. All reads are of different blocks, far
# from each other, so that read-ahead does not help.
must on target 'hcablk target listen --id 1 --buffer-mib 64 --memory-mib 256'
must on target "modprobe -a dm_mod dm_delay && echo \"0 \$(blockdev --getsz $drive) delay $drive 0 2000\" | dmsetup create slow &&
	dmsetup mknodes && echo 0 > /sys/block/\$(dmsetup info -c --noheadings -o blkdevname slow)/queue/read_ahead_kb"
export_volume vol1 /dev/mapper/slow --mode=cached c1 c2
connect c1 vol1 --queues 2 --queue-depth 1024 --io-timeout 600
greedy=$device
connect c2 vol1 --queues 1 --io-timeout 600
modest=$device
for ((n = 0; n < jobs; n++)); do
	ON_SECONDS=400 spawn greedy$n c1 "fio --name=r --filename=$greedy --direct=1 --ioengine=libaio --rw=randread --bs=4k \
		--iodepth=$each --cpus_allowed=$((n % 2)) --offset=$((n * 100))M --size=100M --time_based --runtime=400 --number_ios=$((100 * each))"
done
# reads GUEST
reads() {
	stat_of "$1" $initiator/vol1 reads
}
must wait_until c1 120 "awk '\$1 == \"reads\" { exit !(\$2 > $((2 * bound))) }' $initiator/vol1/stats"
spawn modest c2 "fio --name=r --filename=$modest --direct=1 --ioengine=libaio --rw=randread --bs=4k --iodepth=1 --offset=430M \
	--size=16M --number_ios=$((rounds + 4))"
passed() {
	must wait_until c2 240 "awk '\$1 == \"reads\" { exit !(\$2 > $1) }' $initiator/vol1/stats"
}
passed $(($(reads c2) + 1))
before=$(reads c1) first=$(reads c2)
passed $((first + rounds))
meanwhile=$(($(reads c1) - before)) rounds=$(($(reads c2) - first))
echo "# $meanwhile reads of the greedy host ended while $rounds reads of the other ended, one after the other" >&2
# A request waits for one of the running requests to end, and then for the drive: at most two rounds of the workers. In order of
# arrival it would wait for all waiting requests and the drive: five and a half rounds, and one.
less "each read of the modest host waits for no more than three rounds" "$meanwhile" $((rounds * 3 * bound))
join modest
must on c1 'killall -q -INT fio; true'
for ((n = 0; n < jobs; n++)); do
	join greedy$n || true
done
for guest in c1 c2; do
	same "$guest: no errors" 0 "$(stat_of $guest $initiator/vol1 errors)"
	disconnect $guest vol1
done
must on target 'hcablk target unexport vol1 && dmsetup remove slow'
