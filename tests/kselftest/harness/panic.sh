#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: a guest whose kernel panics fails the test at once, and the log has the panic.
# turn: 18
# takes: 15
# guests: c2
# must-fail: c2's kernel: .*Kernel panic

. "${0%/*}/../lib/lib.sh"

started=$(now_ms)
on c2 'echo c > /proc/sysrq-trigger'
same "the exit code of the command reports the dead guest" 125 $?
within "the command ends within 45 s of the panic" $(($(now_ms) - started)) 45000
