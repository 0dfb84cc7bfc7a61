#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: when a link or an RDMA device fails, a disk with one path waits and a disk with two paths continues: no error, no wrong data.
# turn: 14
# takes: 130
# waits: yes
# skips: siw debug
# timeout: 1200

. "${0%/*}/../lib/lib.sh"
. "${0%/*}/../lib/multi.sh"
. "${0%/*}/../lib/matrix.sh"

[ "$rdma" = rxe ] || skip "TCP notices a silent peer only when a request gets no response in time"

matrix_begin
# Test matrix/ports has the faults `port` and `their_port`.
for fault in $(by_turns "device blackout" "cut flap their_device"); do
	row "$fault"
done
matrix_end
