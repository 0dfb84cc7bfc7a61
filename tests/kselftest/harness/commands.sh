#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: the test system runs commands in guests, several at once, and tells how they end.
# tier: heart
# turn: 2
# takes: 15

. "${0%/*}/../lib/lib.sh"

same "a command's output comes back" "target" "$(on target hostname)"
on c1 'exit 7'
same "a command's exit code comes back" 7 $?
silent "standard error is apart" on c1 'echo words >&2'
same "large output is whole" "$(seq 200000 | md5sum)" "$(on c1 'seq 200000' | md5sum)"
ON_SECONDS=1 on c1 'while :; do :; done' 2> /dev/null
same "a command that takes too long is killed" 124 $?
ON_SECONDS=1 on c1 'sleep 99 & sleep 98' 2> /dev/null
check "and so are its children" wait_until c1 60 '! pidof sleep'
check "a command's background leftovers do not hold it up" on c1 'sleep 5 & true'

spawn first c1 'until [ -e /tmp/second ]; do usleep 10000; done'
spawn second c1 'echo > /tmp/second'
check "two commands run in one guest at the same time" join first
check "and both end" join second

# fails COMMAND…: the test point that the command is fails.
fails() (
	_failures=0
	"$@" > /dev/null 2>&1
	[ $_failures = 1 ]
)
check "what differs is not the same" fails same x 1 2
check "nothing and nothing are not the same" fails same x "" ""
for sum in md5sum sha256sum; do
	check "nor are their checksums: $sum" fails same x "$($sum < /dev/null)" "$($sum < /dev/null)"
done
check "what says something is not silent" fails silent x echo words
check "nor is what fails" fails silent x false
for anything in "" . '^' '.*' 'busy|^$'; do
	check "a pattern is not like anything: '$anything'" fails like x "$anything" busy
done
check "what is not like the pattern fails" fails like x busy idle

must wait_until c2 60 true
refuse "a wait without its event ends" becomes_true c2 1 false
wait_until c2 1 false 2> /dev/null
same "one that is to come does, too, and what does not come at all is not late" 1 $?
must on c2 "rm -f /tmp/event; (usleep $((3000000 * slow)); touch /tmp/event) > /dev/null 2>&1 &"
wait_until c2 1 '[ -e /tmp/event ]' 2> /dev/null
same "what comes after its time is late" "$LATE" $?
must on c2 "(usleep $((3000000 * slow)); echo 'hcablk-test: it comes' > /dev/kmsg) > /dev/null 2>&1 &"
wait_log c2 1 'hcablk-test: it comes' 2> /dev/null >&2
same "so is what the kernel says after its time" "$LATE" $?
must on c2 'rm -f /tmp/event; (usleep 700000; touch /tmp/event) > /dev/null 2>&1 &'
check "a wait sees its event" wait_until c2 60 '[ -e /tmp/event ]'
must on c2 'rm -f /tmp/event; (usleep 700000; touch /tmp/event) > /dev/null 2>&1 &'
check "also one that lines and quotes ask for" wait_until c2 60 "event='/tmp/event'
	[ -e \"\$event\" ]"
