#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: when the target falls silent, or the cable is cut, requests fail within the time that was set.
# group: fail
# timeout: 240

. "${0%/*}/lib.sh"

export_volume vol1 "$drive" c1 c2
connect c1 vol1 --io-timeout 4
start_load one c1 "$device"
must vm pause target
ends_within one 40000 "target silent"
check "the disk goes" wait_until c1 30 "[ ! -e /sys/block/$disk ]"
check "disconnecting does not wait for the target" on c1 'hcablk disconnect vol1'
same "no queue pair is left" 0 "$(queue_pairs c1)"
must vm resume target
check "the target ends the session when it is back" wait_until target 60 "[ -z \"\$(cat $target/volumes/vol1/clients)\" ]"
connect c1 vol1 --io-timeout 4
check "the volume can be used again" on c1 "hcablk-scatter $device random 72 16"

start_load two c1 "$device"
must vm link-down target 0
ends_within two 40000 "cable cut"
check "the disk goes after the cut" wait_until c1 30 "[ ! -e /sys/block/$disk ]"
check "it disconnects after the cut" on c1 'hcablk disconnect vol1'
must vm link-up target 0
check "the target cleans up after the cut" wait_until target 60 "[ -z \"\$(cat $target/volumes/vol1/clients)\" ]"
same "no queue pair is left at the target" 0 "$(queue_pairs target)"
must wait_until c1 20 "ping -c 1 -W 1 $target_address"
connect c1 vol1
check "with the cable in again it connects" on c1 "dd if=$device of=/dev/null bs=4k count=4 iflag=direct"
