#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: an export that ends in order makes acknowledged writes durable: after the next export a program's flush succeeds.
# turn: 23
# takes: 40
# guests: target c1
# waits: yes
# skips: siw debug
# timeout: 900

. "${0%/*}/../lib/lib.sh"

[ "$rdma" = rxe ] || skip "the library needs memory windows, which soft-iWARP does not have"
add_volatile_drive
must on c1 'modprobe rdma_ucm'

# says TEXT: waits until the program has printed the text
says() {
	wait_until c1 100 "grep -q '$1' /tmp/promise"
}
# promises: starts a program that writes a block, and flushes on a signal
promises() {
	must on c1 "rm -f /tmp/go /tmp/promise"
	ON_SECONDS=300 spawn promise c1 "hcablk-user $target_address vol1 promise /tmp/go > /tmp/promise 2>&1"
	must says written
}
# kept: lets the program flush, and checks that no acknowledged write is lost
kept() {
	must says '^reconnects 1'
	must on c1 'touch /tmp/go'
	must join promise
	same "$1" "flush: kept flush: kept fua: kept write: kept" "$(on c1 "tail -n 4 /tmp/promise | xargs")"
}

export_volume vol1 "$volatile_drive" c1
promises
must on target 'hcablk target unexport --force vol1'
must says '^lost: .*ends the export'
export_volume vol1 "$volatile_drive" c1
kept "a new export of the same drive loses no writes"

must on target "dd if=/dev/zero of=$volatile_drive bs=4k count=1 oflag=direct conv=fsync status=none"
promises
must on target 'hcablk target unexport --force vol1'
must says '^lost: .*ends the export'
# The target then sends no more requests to the drive.
must wait_until target 60 "$no_queue_pairs"
must vm kill target
must vm start target
same "the write is on the drive, which has lost its cache since" 0 \
	"$(on target "dd if=$volatile_drive bs=512 count=1 iflag=direct status=none | tr -d Z | wc -c")"
export_volume vol1 "$volatile_drive" c1
kept "an export after a power loss of the target loses no writes"
must on target 'hcablk target unexport vol1'
