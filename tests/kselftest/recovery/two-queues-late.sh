#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: when two queues time out, both stop accepting requests at once, and the queue whose turn comes after the drive has answered is not replaced.
# turn: 3
# takes: 30
# waits: yes
# timeout: 300

. "${0%/*}/../lib/lib.sh"
. "${0%/*}/../lib/multi.sh"

two_cards 1 target c1
must on target "modprobe dm_mod && echo '0 65536 linear $drive 0' | dmsetup create gate && dmsetup mknodes &&
	printf '0 65536 linear /dev/mapper/gate 0\n65536 65536 linear $drive2 0\n' | dmsetup create both && dmsetup mknodes"
export_volume v /dev/mapper/both c1
target_address=10.77.1.1
connect c1 v --queues 2 --io-timeout 4 --connect-timeout 60
add_path c1 v 1 10.77.2.1
check "the second path is live" path_is c1 v 1 live
# Uses the first path while it accepts requests.
must on c1 "echo numa > $initiator/v/policy"

# on_processor CPU COMMAND: prints the command that runs it on this processor, and so on its queue
on_processor() {
	echo "taskset -c $1 $2"
}
must on target 'dmsetup suspend --nolockfs gate'
for cpu in 0 1; do
	spawn held$cpu c1 "$(on_processor $cpu "dd if=/dev/urandom of=$device bs=64k seek=$cpu count=1 oflag=direct conv=notrunc")"
done
must drive_holds write
for queue in 0 1; do
	check "queue $queue times out" wait_log c1 60 "v: queue $queue of path 0 does not respond in time"
done
# Two sessions of two queues each, their admin queue pairs, and the replacement.
check "a replacement is created for the first queue" wait_until c1 60 "[ \$(rdma resource show qp | grep -vc 'type GSI') = 7 ]"
same "no queue is replaced while the drive hangs" 0 "$(stat_of c1 $initiator/v replaced_queues)"
first=$(sent_by c1 path1) second=$(sent_by c1 path2)
for cpu in 0 1; do
	check "processor $cpu writes to the working drive while the other drive hangs" on c1 "$(on_processor $cpu \
		"dd if=/dev/urandom of=$device bs=64k seek=600 count=20 oflag=direct conv=notrunc")"
done
first=$(($(sent_by c1 path1) - first)) second=$(($(sent_by c1 path2) - second))
echo "# packets over the first path: $first, over the second: $second"
less "both processors use the second path" $((first * 4)) "$second"
must on target 'dmsetup resume gate'
for cpu in 0 1; do
	check "the write from processor $cpu succeeds" join held$cpu
done
check "the queue whose turn came later has answered and stays" wait_log c1 60 'v: queue [01] of path 0 has received its late responses and stays in use'
same "one queue was replaced" 1 "$(stat_of c1 $initiator/v replaced_queues)"
same "the client reads what the drive holds" "$(on target 'dd if=/dev/mapper/both bs=64k count=2 iflag=direct 2> /dev/null | sha256sum')" \
	"$(on c1 "dd if=$device bs=64k count=2 iflag=direct 2> /dev/null | sha256sum")"
first=$(sent_by c1 path1)
for cpu in 0 1; do
	check "processor $cpu reads" on c1 "$(on_processor $cpu "dd if=$device of=/dev/null bs=64k count=20 iflag=direct")"
done
less "both processors use the first path again" "$first" "$(sent_by c1 path1)"
same "no request has failed" "0 0" "$(stat_of c1 $initiator/v errors) $(stat_of target $target/volumes/v errors)"
disconnect c1 v
must on target 'hcablk target unexport v && dmsetup remove both && dmsetup remove gate'
