#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: a target that takes longer to let all queue pairs of a path connect than an attempt takes at first is connected again all the same.
# group: fail
# skips: siw
# waits: yes

. "${0%/*}/lib.sh"

export_volume vol1 "$drive" c1
# The first attempts take half of it.
connect c1 vol1 --ctrl-loss-tmo -1 --connect-timeout 4
must on target 'hcablk target unexport --force vol1'
must wait_until c1 60 "[ \$(cat $initiator/vol1/state) = queueing ]"
# One answer comes in time, two after each other do not.
netem target eth0 delay 1100ms
export_volume vol1 "$drive" c1
begun=$(now_ms)
check "the next attempts take longer, until it is connected again" wait_until c1 90 "[ \$(cat $initiator/vol1/state) = live ]"
echo "# $(($(now_ms) - begun)) ms" >&2
netem target eth0
check "and serves" on c1 "hcablk-scatter $device random 178 4"
same "no request has failed" 0 "$(stat_of c1 $initiator/vol1 errors)"

# As before, from then on.
must on target 'hcablk target unexport --force vol1'
must wait_until c1 60 "[ \$(cat $initiator/vol1/state) = queueing ]"
export_volume vol1 "$drive" c1
check "the next time, too" wait_until c1 60 "[ \$(cat $initiator/vol1/state) = live ]"
disconnect c1 vol1
must on target 'hcablk target unexport vol1'
