#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: a queue whose requests time out is replaced alone, its requests are issued again, and no request fails.
# turn: 19
# takes: 80
# waits: yes
# timeout: 480

. "${0%/*}/../lib/lib.sh"

# The first half of the volume can be held up, as a hung drive would; the second half cannot.
must on target "modprobe dm_mod && echo '0 65536 linear $drive 0' | dmsetup create gate && dmsetup mknodes &&
	printf '0 65536 linear /dev/mapper/gate 0\n65536 65536 linear $drive2 0\n' | dmsetup create both && dmsetup mknodes"
export_volume v /dev/mapper/both c1

# replaced: prints how many queue pairs the initiator and the target have replaced
replaced() {
	echo "$(stat_of c1 $initiator/v replaced_queues) $(stat_of target $target/volumes/v replaced_queues)"
}
# writing CPU BLOCK TEXT: prints the command that writes a block of 64 KiB on this processor, and so on its queue
writing() {
	echo "yes $3 | head -c 64k > /tmp/data.$2 && taskset -c $1 dd if=/tmp/data.$2 of=$device bs=64k seek=$2 count=1 oflag=direct conv=notrunc"
}
# holds BLOCK: succeeds if the written data is there, at the target too
holds() {
	on c1 "dd if=$device bs=64k skip=$1 count=1 iflag=direct | cmp - /tmp/data.$1" &&
		[ "$(on c1 "sha256sum < /tmp/data.$1")" = "$(on target "dd if=/dev/mapper/both bs=64k skip=$1 count=1 iflag=direct | sha256sum")" ]
}
# suspend_drive, resume_drive: stops and continues the drive of the first half
suspend_drive() {
	must on target 'dmsetup suspend --nolockfs gate'
}
resume_drive() {
	must on target 'dmsetup resume gate'
}
# is_replaced PAIRS: waits for a queue pair in addition to these, the replacement of one
is_replaced() {
	wait_until c1 30 "[ \$(rdma resource show qp | grep -vc 'type GSI') -gt $1 ]"
}
# is_freed PAIRS: waits until only these are left and the replaced one is freed
is_freed() {
	wait_until c1 30 "[ \$(rdma resource show qp | grep -vc 'type GSI') = $1 ]"
}

connect c1 v --queues 2 --io-timeout 4 --connect-timeout 40
first=$disk session=$(on c1 "cat $initiator/v/session") pairs=$(queue_pairs c1)
# Two I/O queue pairs and the admin queue pair.
[ "$pairs" = 3 ] || die "$pairs queue pairs"
suspend_drive
spawn held c1 "$(writing 0 3 held)"
spawn more c1 "taskset -c 0 dd if=$device of=/dev/null bs=4k skip=64 count=4 iflag=direct"
check "a replacement is created for a queue pair that timed out" is_replaced "$pairs"
for n in 513 514 515 516; do
	check "the other queue works while the drive holds the first queue's write ($n)" on c1 "$(writing 1 $n on$n)"
done
same "no queue pair is replaced while the drive holds a request of it" "0 0" "$(replaced)"
resume_drive
check "the held write succeeds" join held
check "the read behind it succeeds" join more
same "one queue was replaced" "1 1" "$(replaced)"
less "the requests of that queue were issued again" 1 "$(stat_of c1 $initiator/v retries)"
same "no request has failed" "0 0" "$(stat_of c1 $initiator/v errors) $(stat_of target $target/volumes/v errors)"
for n in 3 513 516; do
	check "the data is on the disk and on the drive ($n)" holds $n
done
same "the session stays the same" "$first $session" "$(on c1 "cat $initiator/v/device $initiator/v/session" | xargs)"
check "the initiator's log reports the replacement" wait_log c1 60 'v: queue [01] of path 0 did not respond in time and was replaced'
check "the target's log reports the replacement" wait_log target 60 'replaced queue [01]'

check "the replaced queue pair is freed while the disk lives" is_freed "$pairs"

# Many requests at a time, on both queues.
read -r before _ <<< "$(replaced)"
spawn load c1 "fio --name=v --filename=$device --direct=1 --ioengine=libaio --rw=randrw --bsrange=4k-128k --size=12M \
	--iodepth=16 --numjobs=2 --offset_increment=16M --verify=crc32c --verify_fatal=1"
must wait_until c1 30 "awk '{ exit !(\$5 > 20) }' /sys/block/$disk/stat"
suspend_drive
check "a queue times out under load" is_replaced "$pairs"
resume_drive
check "the load reads what it has written" join load
read -r after _ <<< "$(replaced)"
less "queues were replaced" "$before" "$after"
check "memory of every shape is written and read right after replacements" on c1 "hcablk-scatter $device random 77 8"
same "no request has failed under load" "0 0" "$(stat_of c1 $initiator/v errors) $(stat_of c1 $initiator/v protocol_errors)"
disconnect c1 v
same "no queue pair is left" 0 "$(queue_pairs c1)"
check "no queue pair is left at the target" wait_until target 60 "$no_queue_pairs"

# When the drive does not continue in time the session fails, as it must.
connect c1 v --queues 2 --io-timeout 4 --connect-timeout 5
suspend_drive
spawn lost c1 "$(writing 0 3 lost)"
refuse "a request fails when no queue pair replaces the one of its queue" join lost
check "the disk is removed" wait_until c1 30 "[ ! -e /sys/block/$disk ]"
like "the disk reports the reason" "no response in time" "$(on c1 "cat $initiator/v/error")"
resume_drive
check "the target ends the failed session" wait_until target 60 "[ -z \"\$(cat $target/volumes/v/clients)\" ]"
must on c1 'hcablk disconnect v'

# A replaced queue pair is freed while the disk lives, so there is no limit on replacements.
connect c1 v --queues 1 --io-timeout 1 --connect-timeout 40
pairs=$(queue_pairs c1)
read -r before _ <<< "$(replaced)"
for n in $(seq 17); do
	suspend_drive
	spawn held c1 "$(writing 0 "$n" "again$n")"
	must is_replaced "$pairs"
	resume_drive
	must join held
	must is_freed "$pairs"
done
read -r after _ <<< "$(replaced)"
# On a busy machine a request may time out without a hung drive.
less "a queue is replaced each time it times out" 16 $((after - before))
disconnect c1 v
check "the target ends the last session" wait_until target 60 "[ -z \"\$(cat $target/volumes/v/clients)\" ]"
must on target 'hcablk target unexport v && dmsetup remove both && dmsetup remove gate'
