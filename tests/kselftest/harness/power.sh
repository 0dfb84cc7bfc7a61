#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: guests can be killed, started again, paused and cut off during a test.
# turn: 22
# takes: 20

. "${0%/*}/../lib/lib.sh"

spawn victim target 'sleep 60'
must wait_until target 60 'pidof sleep'
must vm kill target
join victim
same "a command in a killed guest ends" 125 $?
refuse "a killed target does not answer" on c1 "ping -c 1 -W 1 $target_address"
check "the killed target starts again" vm start target
check "the restarted target is reached" wait_until c1 60 "ping -c 1 -W 1 $target_address"

must vm link-down target 0
refuse "c1 does not reach the target while its cable is out" on c1 "ping -c 1 -W 1 $target_address"
check "c2 reaches the target meanwhile" on c2 "ping -c 1 -w 5 $target_address"
must vm link-up target 0
check "c1 reaches the target when its cable is in again" wait_until c1 60 "ping -c 1 -W 1 $target_address"

must vm pause target
refuse "a paused target does not answer" on c1 "ping -c 1 -W 1 $target_address"
must vm resume target
check "the resumed target answers" wait_until c1 60 "ping -c 1 -W 1 $target_address"
