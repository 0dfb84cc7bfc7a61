#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: a killed target, a withdrawn export and a client stopped beyond every timeout cause no error and no wrong data; a disk whose ctrl_loss_tmo expires fails early.
# turn: 18
# takes: 85
# waits: yes
# skips: siw debug
# timeout: 1600

. "${0%/*}/../lib/lib.sh"
. "${0%/*}/../lib/multi.sh"
. "${0%/*}/../lib/matrix.sh"

[ "$rdma" = rxe ] || skip "TCP notices a silent peer only when a request gets no response in time"

matrix_begin
for fault in $(by_turns "killed" "withdrawn stopped"); do
	row "$fault"
done
# ctrl_loss_tmo cannot change on a connected disk.
matrix_tmo=4
for guest in c1 c2; do
	disconnect $guest vol1
	matrix_connect $guest
done
started=$(now_ms)
row over
within "the disks fail and are live again within 120 s" $(($(now_ms) - started)) $((120000 * slow))
matrix_end
