#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: a test in which something ended after its time is run again on fresh guests, and passes if it is in time then.
# turn: 20
# takes: 30
# guests: c2
# must-be-late: the event comes in time$

. "${0%/*}/../lib/lib.sh"

check "the guest is a fresh one" on c2 '[ ! -e /tmp/tried ] && touch /tmp/tried'
must on c2 "rm -f /tmp/event; (usleep $((HCABLK_TRY == 1 ? 3000000 * slow : 1)); touch /tmp/event) > /dev/null 2>&1 &"
check "the event comes in time" wait_until c2 $((HCABLK_TRY == 1 ? 1 : 60)) '[ -e /tmp/event ]'
