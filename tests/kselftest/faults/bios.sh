#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: bios of the target's drive that fail at random give errors to those requests, and the connection stays live.
# turn: 4
# takes: 5
# skips: stock

. "${0%/*}/../lib/lib.sh"

on target '[ -d /sys/kernel/debug/fail_make_request ]' ||
	skip "the kernel has no fault injection (CONFIG_FAULT_INJECTION, CONFIG_FAIL_MAKE_REQUEST)"

share c1
disk0=$(on target "readlink -f $drive")
must on target "echo 1 > /sys/block/${disk0#/dev/}/make-it-fail &&
	cd /sys/kernel/debug/fail_make_request && echo 0 > verbose && echo -1 > times && echo 10 > probability"
check "fio continues when some of its requests fail" fio c1 "--name=l --filename=$device --rw=randrw --bs=4k --iodepth=32 \
	--size=$(few 4)M --continue_on_error=io"
must on target "echo 0 > /sys/kernel/debug/fail_make_request/probability; echo 0 > /sys/block/${disk0#/dev/}/make-it-fail"
errors=$(stat_of c1 $initiator/vol1 errors)
less "the client counts errors" 5 "$errors"
less "the client counts fewer errors than requests" "$errors" 500
same "client and target count the same number of errors" "$(stat_of target $target/volumes/vol1 errors)" "$errors"
same "the connection stays live" live "$(on c1 "cat $initiator/vol1/state")"
check "the disk works without faults" on c1 "hcablk-scatter $device random 93 4"
