#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: a change of reservations that waits for a path fails when its disk is removed, and is not made on another volume that the device gets later.
# turn: 22
# takes: 10
# waits: yes
# timeout: 200

. "${0%/*}/../lib/lib.sh"

must on target "$(keep /run/reservations) && modprobe hcablk_target && env echo /run/reservations > $target/reservations"
export_volume vol1 "$drive" --wwid=6f0c2b62-5f5e-4c0e-9d57-0b8f3e9b0b81 c1 c2
export_volume vol2 "$drive2" --wwid=6f0c2b62-5f5e-4c0e-9d57-0b8f3e9b0b82 c1 c2
connect c1 vol1 --ctrl-loss-tmo 600
must vm link-down c1 0
must wait_until c1 60 "[ \$(cat $initiator/vol1/state) = queueing ]"
spawn asking c1 "exec hcablk-pr $device register 0 11"
check "the change waits for a path" wait_until c1 30 'grep -q "^State:.D" /proc/$(pidof hcablk-pr)/status'
started=$(now_ms)
must on c1 "echo 1 > $initiator/vol1/force_disconnect"
must vm link-up c1 0
must on c1 "cd $initiator/vol1 && echo 0 > enable && echo vol2 > volume && echo 1 > enable"
refuse "the change fails when its disk is removed" join asking
within "the change fails at once, before its wait of a minute is over" $(($(now_ms) - started)) $((40000 * slow))
connect c2 vol2
like "the change was not made on the other volume" ":\$" "$(on c2 "hcablk-pr $device keys")"
must on c1 "hcablk-pr /dev/\$(cat $initiator/vol1/device) register 0 22"
like "a change on the other volume succeeds" ": 22\$" "$(on c2 "hcablk-pr $device keys")"
disconnect c2 vol2
disconnect c1 vol1
must on target 'hcablk target unexport vol1 && hcablk target unexport vol2'
