#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: a target that is killed, or withdraws its export, and a client that is stopped for longer than every timeout: no error, no wrong data; and an early error when ctrl_loss_tmo is over.
# turn: 18
# takes: 85
# waits: yes
# skips: siw debug
# timeout: 1600

. "${0%/*}/../lib/lib.sh"
. "${0%/*}/../lib/multi.sh"
. "${0%/*}/../lib/matrix.sh"

[ "$rdma" = rxe ] || skip "TCP notices a silent peer only when a request is not answered in time"

matrix_begin
for fault in $(by_turns "killed" "withdrawn stopped"); do
	row "$fault"
done
# Another ctrl_loss_tmo is another disk.
matrix_tmo=4
for guest in c1 c2; do
	disconnect $guest vol1
	matrix_connect $guest
done
started=$(now_ms)
row over
within "that is told, and the disks are there again, within 120 s" $(($(now_ms) - started)) $((120000 * slow))
matrix_end
