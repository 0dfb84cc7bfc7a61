#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: while a replacement queue pair is connected, a lost path ends at once; an RDMA device can be removed also after the replacement failed.
# turn: 6
# takes: 30
# waits: yes
# skips: siw

. "${0%/*}/../lib/lib.sh"
. "${0%/*}/../lib/multi.sh"

[ "$rdma" != siw ] || skip "TCP notices a silent peer only when a request gets no response in time"
two_cards 1 target c1
target_address=10.77.1.1
must on target "modprobe dm_mod && echo '0 65536 linear $drive 0' | dmsetup create gate && dmsetup mknodes"
export_volume vol1 /dev/mapper/gate --wwid=6f0c2b62-5f5e-4c0e-9d57-0b8f3e9b0a45 c1

connect c1 vol1 --ctrl-loss-tmo 600 --queues 1 --io-timeout 4 --connect-timeout 120 --keep-alive-tmo 1
pairs=$(queue_pairs c1)
must on target 'dmsetup suspend --nolockfs gate'
spawn held c1 "dd if=/dev/zero of=$device bs=64k count=1 oflag=direct"
check "a queue pair that timed out gets a replacement" wait_until c1 30 "[ \$(rdma resource show qp | grep -vc 'type GSI') -gt $pairs ]"
# The second path connects meanwhile, so that the disk continues over it.
add_path c1 vol1 1 10.77.2.1
must path_is c1 vol1 1 live
cut path1
started=$(now_ms)
check "the disk loses the path" disk_is c1 vol1 degraded
within "the loss does not wait for the replacement to fail" $(($(now_ms) - started)) $((30000 * slow))
must on target 'dmsetup resume gate'
check "the write succeeds over the other path" join held
mend path1
check "the lost path comes back" disk_is c1 vol1 live
same "the client has no errors" 0 "$(stat_of c1 $initiator/vol1 errors)"
disconnect c1 vol1

connect c1 vol1 --ctrl-loss-tmo 600 --queues 1 --io-timeout 4 --connect-timeout 6
must on target 'dmsetup suspend --nolockfs gate'
spawn held c1 "dd if=/dev/zero of=$device bs=64k count=1 oflag=direct"
must disk_is c1 vol1 queueing
like "the log reports that the queue pair cannot be replaced" 'cannot be replaced' "$(in_log c1 'cannot be replaced')"
# References to the device must not last until the disk is given up.
check "the RDMA device can be removed" on c1 "timeout $((60 * slow)) rdma link delete ${rdma}1"
same "the disk still waits" queueing "$(on c1 "cat $initiator/vol1/state")"
must on target 'dmsetup resume gate'
must on c1 'hcablk disconnect --force vol1'
refuse "the held write fails when the disk is disconnected by force" join held
must on target 'hcablk target unexport --force vol1 && dmsetup remove gate'
