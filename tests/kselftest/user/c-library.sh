#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: a C program makes every call of the library, also around a fork, and goes on with the work of a killed one; and the examples in C and Rust read a volume as it is.
# turn: 12
# takes: 25
# skips: siw

. "${0%/*}/../lib/lib.sh"

[ "$rdma" = rxe ] || skip "the library needs memory windows, which soft-iWARP does not have"
must on c1 'modprobe rdma_ucm'
must on target "modprobe dm_mod && dd if=/dev/urandom of=$drive bs=1M count=72 conv=fsync status=none &&
	echo '0 147480 linear $drive 0' | dmsetup create part && dmsetup mknodes"
# volume: exports it
volume() {
	export_volume vol1 /dev/mapper/part --wwid=6f0c2b62-5f5e-4c0e-9d57-0b8f3e9b0a45 c1
}
# successor NAME: a program goes on with the work of the last one, which was killed, and is killed when it has written
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
check "nothing of the program is left at the target" wait_until target 60 "$no_queue_pairs"
# The volume's size is no multiple of what they read at a time.
sum=$(on target 'dd if=/dev/mapper/part bs=1M iflag=direct status=none | sha256sum')
same "the example in C copies the volume" "$sum" "$(on c1 "hcablk-c-copy $whole | sha256sum")"
same "so does the one in Rust" "$sum" "$(on c1 "hcablk-rust-copy $whole | sha256sum")"
like "a program says why a volume cannot be opened" "no volume of this name" "$(on c1 "hcablk-c-copy $target_address nosuch $(host_id c1)" 2>&1)"

successor first
successor second
like "a program is killed, and the next one goes on: nothing is lost" '^flushed' "$(on c1 'cat /tmp/successor')"
must wait_until target 60 "$no_queue_pairs"
must on target 'hcablk target unexport vol1'
volume
successor third
like "the export was another one meanwhile: the next one is told of the loss" 'has lost acknowledged writes' "$(on c1 'cat /tmp/successor')"
successor fourth
like "and so is the one after that" 'has lost acknowledged writes' "$(on c1 'cat /tmp/successor')"
must wait_until target 60 "$no_queue_pairs"
refuse "no module of ours is on the client" on c1 "grep -q '^hcablk' /proc/modules"
must on target 'hcablk target unexport vol1 && dmsetup remove part'
