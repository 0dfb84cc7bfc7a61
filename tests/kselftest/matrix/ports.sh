#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: disabling and re-enabling a port at either side pauses a disk with one path and does not pause a disk with two: no error, no wrong data.
# turn: 13
# takes: 80
# waits: yes
# skips: siw debug
# timeout: 700

. "${0%/*}/../lib/lib.sh"
. "${0%/*}/../lib/multi.sh"
. "${0%/*}/../lib/matrix.sh"

[ "$rdma" = rxe ] || skip "TCP notices a silent peer only when a request gets no response in time"

matrix_begin
row port
row their_port
matrix_end
