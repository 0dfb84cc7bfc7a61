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
check "it starts again" vm start target
check "and is reached again" wait_until c1 60 "ping -c 1 -W 1 $target_address"

must vm link-down target 0
refuse "with the cable out c1 does not reach the target" on c1 "ping -c 1 -W 1 $target_address"
check "but c2 does" on c2 "ping -c 1 -w 5 $target_address"
must vm link-up target 0
check "with the cable in c1 reaches it again" wait_until c1 60 "ping -c 1 -W 1 $target_address"

must vm pause target
refuse "a paused target does not answer" on c1 "ping -c 1 -W 1 $target_address"
must vm resume target
check "a resumed one does" wait_until c1 60 "ping -c 1 -W 1 $target_address"
