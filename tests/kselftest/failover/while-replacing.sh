#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: while another queue pair is waited for, a path that is lost ends at once, and an RDMA device that goes is let go of also after that failed.
# turn: 6
# takes: 30
# waits: yes
# skips: siw

. "${0%/*}/../lib/lib.sh"
. "${0%/*}/../lib/multi.sh"

[ "$rdma" != siw ] || skip "TCP notices a silent peer only when a request is not answered in time"
two_cards 1 target c1
target_address=10.77.1.1
must on target "modprobe dm_mod && echo '0 65536 linear $drive 0' | dmsetup create gate && dmsetup mknodes"
export_volume vol1 /dev/mapper/gate --wwid=6f0c2b62-5f5e-4c0e-9d57-0b8f3e9b0a45 c1

connect c1 vol1 --ctrl-loss-tmo 600 --queues 1 --io-timeout 4 --connect-timeout 120 --keep-alive-tmo 1
pairs=$(queue_pairs c1)
must on target 'dmsetup suspend --nolockfs gate'
spawn held c1 "dd if=/dev/zero of=$device bs=64k count=1 oflag=direct"
check "a queue pair is made for one that has timed out" wait_until c1 30 "[ \$(rdma resource show qp | grep -vc 'type GSI') -gt $pairs ]"
# The other one comes beside it, so that the disk goes on by that.
add_path c1 vol1 1 10.77.2.1
must path_is c1 vol1 1 live
cut path1
started=$(now_ms)
check "the disk has lost it" disk_is c1 vol1 degraded
within "not only when no queue pair has come" $(($(now_ms) - started)) $((30000 * slow))
must on target 'dmsetup resume gate'
check "the write is done by the other" join held
mend path1
check "the lost path comes back" disk_is c1 vol1 live
same "nobody saw an error" 0 "$(stat_of c1 $initiator/vol1 errors)"
disconnect c1 vol1

connect c1 vol1 --ctrl-loss-tmo 600 --queues 1 --io-timeout 4 --connect-timeout 6
must on target 'dmsetup suspend --nolockfs gate'
spawn held c1 "dd if=/dev/zero of=$device bs=64k count=1 oflag=direct"
must disk_is c1 vol1 queueing
like "no queue pair came in time" 'cannot be replaced' "$(in_log c1 'cannot be replaced')"
# Else what refers to the device would be there until the disk is given up.
check "its RDMA device goes" on c1 "timeout $((60 * slow)) rdma link delete ${rdma}1"
same "which the disk waits for" queueing "$(on c1 "cat $initiator/vol1/state")"
must on target 'dmsetup resume gate'
must on c1 'hcablk disconnect --force vol1'
refuse "nothing holds the disk up" join held
must on target 'hcablk target unexport --force vol1 && dmsetup remove gate'
