#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: a session whose requests wait for a hung drive to accept them ends when the drive continues, and its healthy queue pair is not reset before.
# turn: 11
# takes: 75
# waits: yes
# timeout: 300

. "${0%/*}/../lib/lib.sh"

# A drive that accepts four requests, and does them when the drive below it does.
must on target "modprobe -a dm_mod loop && printf '0 65536 linear $drive 0\n' | dmsetup create gate && dmsetup mknodes &&
	losetup /dev/loop0 /dev/mapper/gate"
# A loop device keeps these settings when it is detached.
was=$(on target 'cd /sys/block/loop0/queue && cat nr_requests && sed "s/.*\[//; s/\].*//" scheduler' | xargs)
must on target "echo none > /sys/block/loop0/queue/scheduler && echo 4 > /sys/block/loop0/queue/nr_requests"
same "the drive accepts four requests" 4 "$(on target 'cat /sys/block/loop0/queue/nr_requests')"
export_volume full /dev/loop0 c1
connect c1 full --queues 1 --io-timeout 600
must on target 'echo 3 > /proc/sys/vm/drop_caches && dmsetup suspend --nolockfs gate'
ON_SECONDS=250 spawn load c1 "fio --name=r --filename=$device --direct=1 --ioengine=libaio --rw=randread --bs=64k --iodepth=12 --number_ios=12"
must wait_until target 60 "awk '{ exit !(\$1 == 4) }' /sys/block/loop0/inflight"
must wait_until c1 60 "awk '{ exit !(\$1 >= 8) }' /sys/block/$disk/inflight"
must on c1 "echo 1 > $initiator/full/force_disconnect"
refuse "requests that wait for the drive fail at the client" join load
check "the target waits for the drive" wait_log target 150 'still waiting for the drive'
must on target 'dmsetup resume gate'
check "the session ends when the drive continues" wait_until target 60 "[ -z \"\$(cat $target/volumes/full/clients)\" ]"
same "the session's queue pair was not reset" 0 "$(in_log target 'did not drain|cannot be reset' | wc -l)"
must on c1 'hcablk disconnect --if-exists --force full'
connect c1 full
check "the volume is served afterwards" on c1 "dd if=$device of=/dev/null bs=64k count=4 iflag=direct"
disconnect c1 full
must on target "hcablk target unexport full && echo ${was#* } > /sys/block/loop0/queue/scheduler &&
	echo ${was% *} > /sys/block/loop0/queue/nr_requests && losetup -d /dev/loop0 && dmsetup remove gate"
