#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: a guest whose kernel panics fails the test at once, and the log says where.
# turn: 18
# takes: 15
# guests: c2
# must-fail: c2's kernel: .*Kernel panic

. "${0%/*}/../lib/lib.sh"

started=$(now_ms)
on c2 'echo c > /proc/sysrq-trigger'
same "the command's end says that the guest is gone" 125 $?
within "within seconds" $(($(now_ms) - started)) 45000
