#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: the test system runs commands in guests, several at once, and reports how they end.
# tier: heart
# turn: 2
# takes: 15

. "${0%/*}/../lib/lib.sh"

same "a command's output is returned" "target" "$(on target hostname)"
on c1 'exit 7'
same "a command's exit code is returned" 7 $?
silent "standard error is separate from the output" on c1 'echo words >&2'
same "large output is complete" "$(seq 200000 | md5sum)" "$(on c1 'seq 200000' | md5sum)"
ON_SECONDS=1 on c1 'while :; do :; done' 2> /dev/null
same "a command that exceeds its time is killed" 124 $?
ON_SECONDS=1 on c1 'sleep 99 & sleep 98' 2> /dev/null
check "the children of a killed command are killed" wait_until c1 60 '! pidof sleep'
check "a command ends although a child of it runs in the background" on c1 'sleep 5 & true'

spawn first c1 'until [ -e /tmp/second ]; do usleep 10000; done'
spawn second c1 'echo > /tmp/second'
check "two commands run in one guest at the same time" join first
check "both commands end" join second

# fails COMMAND…: succeeds if the command's test point fails.
fails() (
	_failures=0
	"$@" > /dev/null 2>&1
	[ $_failures = 1 ]
)
check "same fails for different texts" fails same x 1 2
check "same fails for two empty texts" fails same x "" ""
for sum in md5sum sha256sum; do
	check "same fails for two checksums of nothing: $sum" fails same x "$($sum < /dev/null)" "$($sum < /dev/null)"
done
check "silent fails for a command that prints" fails silent x echo words
check "silent fails for a command that fails" fails silent x false
for anything in "" . '^' '.*' 'busy|^$'; do
	check "like fails for a pattern that matches anything: '$anything'" fails like x "$anything" busy
done
check "like fails for a text that does not match" fails like x busy idle

must wait_until c2 60 true
refuse "becomes_true ends without its event" becomes_true c2 1 false
wait_until c2 1 false 2> /dev/null
same "wait_until fails when its event does not come" 1 $?
must on c2 "rm -f /tmp/event; (usleep $((3000000 * slow)); touch /tmp/event) > /dev/null 2>&1 &"
wait_until c2 1 '[ -e /tmp/event ]' 2> /dev/null
same "wait_until is late when its event comes after the time" "$LATE" $?
must on c2 "(usleep $((3000000 * slow)); echo 'hcablk-test: it comes' > /dev/kmsg) > /dev/null 2>&1 &"
wait_log c2 1 'hcablk-test: it comes' 2> /dev/null >&2
same "wait_log is late when its message comes after the time" "$LATE" $?
must on c2 'rm -f /tmp/event; (usleep 700000; touch /tmp/event) > /dev/null 2>&1 &'
check "wait_until sees its event" wait_until c2 60 '[ -e /tmp/event ]'
must on c2 'rm -f /tmp/event; (usleep 700000; touch /tmp/event) > /dev/null 2>&1 &'
check "wait_until accepts a command with lines and quotes" wait_until c2 60 "event='/tmp/event'
	[ -e \"\$event\" ]"
