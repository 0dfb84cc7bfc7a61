#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: events reports the loss and the return of a path and of its session on both sides, once each; top draws a screen of 80x24 and ends.
# turn: 3
# takes: 20
# guests: target c1
# waits: yes

. "${0%/*}/../lib/lib.sh"
. "${0%/*}/../lib/multi.sh"

instances=/sys/kernel/tracing/instances
two_cards 1 target c1
target_address=10.77.1.1
export_volume vol1 "$drive" c1
connect c1 vol1 --ctrl-loss-tmo 600 --queues 2 --keep-alive-tmo 5
add_path c1 vol1 1 10.77.2.1
must disk_is c1 vol1 live

# follow GUEST [OPTION…]: starts a program that writes events to /tmp/events, and waits until it listens
follow() {
	local guest=$1
	shift
	ON_SECONDS=300 spawn "events-$guest" "$guest" "echo \$\$ > /tmp/follower; exec hcablk events --json $* > /tmp/events 2> /tmp/remarks"
	must wait_until "$guest" 30 'grep -q "\"listening\"" /tmp/events'
}
# `reported` GUEST FILTER: prints the events after "listening" that jq selects
reported() {
	on "$1" "jq -c 'select(.source != \"now\") | $2' /tmp/events"
}
# comes GUEST FILTER: waits for an event that jq selects
comes() {
	wait_until "$1" 60 "jq -e 'select(.source != \"now\") | select($2)' /tmp/events > /dev/null"
}
# once GUEST FILTER: succeeds if jq selects exactly one
once() {
	[ "$(reported "$1" "select($2)" | wc -l)" = 1 ]
}
# stop GUEST: interrupts the program as a user does
stop() {
	must on "$1" 'kill -INT $(cat /tmp/follower)'
	join "events-$1"
}

follow c1
follow target
same "both programs listen without a remark" 0 "$(on c1 'cat /tmp/remarks' | wc -l)"
same "the first events are the state of the disk and its paths" '"disk-state" null "live"
"path-state" 0 "live"
"path-state" 1 "live"' "$(on c1 "jq -r 'select(.source == \"now\" and .disk == \"vol1\") | \"\(.event | tojson) \(.path) \(.state | tojson)\"' /tmp/events")"

cut path2
check "an event reports the lost path" comes c1 '.event == "path-state" and .path == 1 and .state == "lost"'
check "an event reports the degraded disk" comes c1 '.event == "disk-state" and .state == "degraded"'
check "an event reports the end of the path's session" comes c1 '.event == "session" and .state == "ended" and .errno != null'
check "an event reports the end of the session at the target" comes target '.event == "target-session" and .state == "ended"'
check "the event of the loss gives the reason in words" once c1 '.state == "lost" and (.error | length) > 5'
check "the loss is reported once" once c1 '.event == "path-state" and .state == "lost"'
same "passing states are not reported" 0 "$(reported c1 'select(.state == "waiting" or (.event == "path-state" and .state == "connecting"))' | wc -l)"
mend path2
check "an event reports the path that came back" comes c1 '.event == "path-state" and .path == 1 and .state == "live"'
check "an event reports the new session at the target" comes target '.event == "target-session" and .state == "live"'
lost=$(reported c1 'select(.event == "path-state" and .state == "lost").time' | tr -d '"')
live=$(reported c1 'select(.event == "path-state" and .state == "live").time' | tr -d '"')
check "the events' times are in order" [ "$lost" '<' "$live" ]
check "the client's program exits with success when interrupted" stop c1
check "the target's program exits with success when interrupted" stop target
for guest in c1 target; do
	same "$guest: no instance is left in tracefs" 0 "$(on $guest "ls $instances | grep -c '^hcablk-'")"
done

follow c1 --all --count 1
must on c1 "echo 0 > $initiator/vol1/paths/1/enable"
check "the program ends after --count events" join events-c1
same "it printed one event" 1 "$(reported c1 . | wc -l)"

# The screen: keys come through a pipe, and the screen is drawn into a file.
must on c1 'rm -f /tmp/keys && mkfifo /tmp/keys && mkdir -p /dev/pts && { mountpoint -q /dev/pts || mount -t devpts devpts /dev/pts; }'
ON_SECONDS=300 spawn top c1 'exec 3<> /tmp/keys; TERM=xterm script -q -e -f -c "stty rows 24 cols 80; exec hcablk top 1" /tmp/screen < /tmp/keys > /dev/null'
# seen TEXT: waits until the text was drawn in one piece
seen() {
	wait_until c1 30 "grep -qF '$1' /tmp/screen"
}
check "top shows the disk" seen vol1
check "top shows its keys" seen end
must on c1 "printf 2 > /tmp/keys"
check "key 2 shows the paths" seen 10.77.1.1:7744
must on c1 "printf m > /tmp/keys"
check "key m starts to measure" wait_until c1 30 "grep -qx 1 $initiator/vol1/timing"
must on c1 "printf q > /tmp/keys"
check "key q ends top" join top
check "top restores the screen" on c1 "grep -q '\[?1049l' /tmp/screen"
