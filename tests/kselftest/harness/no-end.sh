#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: a test that does not end is stopped and has failed.
# turn: 6
# takes: 10
# guests: c1
# timeout: 3
# must-fail: no end after [0-9]+ s

. "${0%/*}/../lib/lib.sh"

must on c1 'sleep 60'
