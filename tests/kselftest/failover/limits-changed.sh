#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: ctrl_loss_tmo, fast_io_fail_tmo and reconnect_delay can be changed while a disk is in use, and the present loss ends at the new limits.
# turn: 21
# takes: 20
# guests: target c1
# timeout: 480

. "${0%/*}/../lib/lib.sh"

dev=$initiator/vol1
share c1
disconnect c1 vol1
connect c1 vol1 --ctrl-loss-tmo 3000 --reconnect-delay 60 --keep-alive-tmo $((2 * slow))
for change in ctrl_loss_tmo=-1 ctrl_loss_tmo=2000 fast_io_fail_tmo=100 fast_io_fail_tmo=-1 reconnect_delay=30 reconnect_delay=1; do
	must on c1 "env echo ${change#*=} > $dev/${change%=*}"
	same "$change is set while the disk is in use" "${change#*=}" "$(on c1 "cat $dev/${change%=*}")"
done
like "ctrl_loss_tmo 0 is refused for a disk that outlives its connection" busy "$(on c1 "env echo 0 2>&1 > $dev/ctrl_loss_tmo")"
like "a change of queue_depth is refused while the disk is in use" busy "$(on c1 "env echo 7 2>&1 > $dev/queue_depth")"
same "the refused changes have no effect" "2000 live" "$(on c1 "cat $dev/ctrl_loss_tmo $dev/state | xargs")"

must vm link-down target 0
must wait_until c1 60 "grep -q queueing $dev/state"
spawn waits c1 "dd if=/dev/zero of=$device bs=4k count=1 oflag=direct 2>&1"
must wait_until c1 30 'grep -q "(dd) D" /proc/[0-9]*/stat'
must on c1 "env echo 1 > $dev/fast_io_fail_tmo"
check "the disk fails requests at the new fast_io_fail_tmo" wait_until c1 60 "grep -q failing-fast $dev/state"
refuse "the waiting request fails at the new fast_io_fail_tmo" join waits
must on c1 "env echo 1 > $dev/ctrl_loss_tmo"
check "the disk is removed at the new ctrl_loss_tmo" wait_until c1 120 "grep -q failed $dev/state"
must vm link-up target 0
disconnect c1 vol1

connect c1 vol1 --ctrl-loss-tmo 0
like "ctrl_loss_tmo 600 is refused for a disk that ends with its connection" busy "$(on c1 "env echo 600 2>&1 > $dev/ctrl_loss_tmo")"
disconnect c1 vol1
check "both values of ctrl_loss_tmo are accepted without a disk" on c1 "mkdir -p $dev && echo 0 > $dev/ctrl_loss_tmo && echo 600 > $dev/ctrl_loss_tmo && rmdir $dev"
