# shellcheck shell=bash disable=SC2034,SC2154 # names are for the tests, or in lib.sh
# SPDX-License-Identifier: GPL-2.0
#
# Functions of tests of lost writes: programs that keep files open, and flushes through their descriptors.

# state_is GUEST VOLUME STATE: waits until the disk has this state
state_is() {
	wait_until "$1" 60 "[ \$(cat $initiator/$2/state) = $3 ]"
}

# lost GUEST VOLUME: prints the attribute lost_writes
lost() {
	on "$1" "cat $initiator/$2/lost_writes"
}

declare -A _holders

# hold NAME GUEST r|w|x FILE: keeps the file open until `release NAME`: for reading, for writing, or exclusively for writing.
hold() {
	_holders[$1]=$2
	ON_SECONDS=900 spawn "$1" "$2" "exec hcablk-hold $1 $3 $4"
	must wait_until "$2" 30 "[ -p /tmp/$1.answer ]"
}

# synced NAME: makes the holder call fsync; prints "done" or the error.
synced() {
	on "${_holders[$1]}" "echo sync > /tmp/$1.request && cat /tmp/$1.answer"
}

release() {
	must on "${_holders[$1]}" "echo close > /tmp/$1.request"
	must join "$1"
}

# flush GUEST FILE: opens the file, calls fsync and closes it; prints "done" or the error.
flush() {
	on "$1" "dd if=/dev/null of=$2 conv=fsync,notrunc status=none 2>&1 && echo done" | sed 's/.*: //'
}

eio="Input/output error"
