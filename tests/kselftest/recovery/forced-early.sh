#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: a disk whose partitions are being read from a hung drive is disconnected by force in bounded time.
# turn: 9
# takes: 5
# waits: yes

. "${0%/*}/../lib/lib.sh"

must on target "modprobe dm_mod && echo '0 65536 linear $drive 0' | dmsetup create gate && dmsetup mknodes"
export_volume vol1 /dev/mapper/gate --wwid=6f0c2b62-5f5e-4c0e-9d57-0b8f3e9b0a07 c1
must on c1 'modprobe hcablk'
for tmo in 0 600; do
	must on target 'dmsetup suspend --nolockfs gate'
	spawn connecting c1 "hcablk connect $target_address vol1 --ctrl-loss-tmo $tmo --io-timeout 120"
	must wait_until c1 60 "cat /sys/block/hcablk*/inflight | awk '{ n += \$1 } END { exit !n }'"
	same "ctrl_loss_tmo $tmo: the new disk reads its partitions" connecting "$(on c1 "cat $initiator/vol1/state")"
	started=$(now_ms)
	ON_SECONDS=100 check "ctrl_loss_tmo $tmo: the disk is disconnected by force" on c1 "echo 1 > $initiator/vol1/force_disconnect"
	within "ctrl_loss_tmo $tmo: the disk is disconnected within 20 s" $(($(now_ms) - started)) $((20000 * slow))
	refuse "ctrl_loss_tmo $tmo: the connect command fails" join connecting
	check "ctrl_loss_tmo $tmo: no disk is left" on c1 '! ls /sys/block | grep hcablk'
	must on target 'dmsetup resume gate'
	must on c1 'hcablk disconnect --if-exists vol1'
	check "ctrl_loss_tmo $tmo: no queue pair is left" wait_until c1 60 "$no_queue_pairs"
done
connect c1 vol1
check "the volume connects and works afterwards" on c1 "dd if=$device of=/dev/null bs=4k count=4 iflag=direct"
disconnect c1 vol1
must on target 'hcablk target unexport vol1 && dmsetup remove gate'
