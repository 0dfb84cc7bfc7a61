#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: a C program makes every call of the library, around a fork too, and continues the work of a killed program; the examples in C and Rust read a volume correctly.
# turn: 12
# takes: 25
# skips: siw

. "${0%/*}/../lib/lib.sh"

[ "$rdma" = rxe ] || skip "the library needs memory windows, which soft-iWARP does not have"
must on c1 'modprobe rdma_ucm'
must on target "modprobe dm_mod && dd if=/dev/urandom of=$drive bs=1M count=72 conv=fsync status=none &&
	echo '0 147480 linear $drive 0' | dmsetup create part && dmsetup mknodes"
# volume: exports the volume
volume() {
	export_volume vol1 /dev/mapper/part --wwid=6f0c2b62-5f5e-4c0e-9d57-0b8f3e9b0a45 c1
}
# successor NAME: starts a program that continues the work of the last, killed one, and kills it when it has written
successor() {
	must on c1 'rm -f /tmp/successor'
	spawn "$1" c1 "hcablk-c-successor $whole /tmp/left > /tmp/successor 2>&1 & echo \$! > /tmp/pid; wait \$!"
	must wait_until c1 60 'grep -q ^written /tmp/successor'
	must on c1 'kill -9 $(cat /tmp/pid)'
	join "$1"
}

volume
whole="$target_address vol1 $(host_id c1)"
like "every call of the C library was made" "every call was made" "$(on c1 "hcablk-c-calls $whole" 2>&1)"
check "the program leaves nothing at the target" wait_until target 60 "$no_queue_pairs"
# The volume's size is not a multiple of the examples' reads.
sum=$(on target 'dd if=/dev/mapper/part bs=1M iflag=direct status=none | sha256sum')
same "the example in C copies the volume" "$sum" "$(on c1 "hcablk-c-copy $whole | sha256sum")"
same "the example in Rust copies the volume" "$sum" "$(on c1 "hcablk-rust-copy $whole | sha256sum")"
like "a program reports why a volume cannot be opened" "no volume of this name" "$(on c1 "hcablk-c-copy $target_address nosuch $(host_id c1)" 2>&1)"

successor first
successor second
like "a killed program's successor loses nothing" '^flushed' "$(on c1 'cat /tmp/successor')"
must wait_until target 60 "$no_queue_pairs"
must on target 'hcablk target unexport vol1'
volume
successor third
like "after a new export a successor gets the error of the loss" 'has lost acknowledged writes' "$(on c1 'cat /tmp/successor')"
successor fourth
like "the successor after that gets the error, too" 'has lost acknowledged writes' "$(on c1 'cat /tmp/successor')"
must wait_until target 60 "$no_queue_pairs"
refuse "the client has loaded none of our modules" on c1 "grep -q '^hcablk' /proc/modules"
must on target 'hcablk target unexport vol1 && dmsetup remove part'
