#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: a drive that hangs, is always late, or disappears holds up a program's requests no longer than io-timeout, ctrl-loss-tmo and fast-io-fail-tmo allow; only one program at a time uses a session number.
# turn: 22
# takes: 90
# guests: target c1
# waits: yes
# skips: siw
# timeout: 900

. "${0%/*}/../lib/lib.sh"

[ "$rdma" = rxe ] || skip "the library needs memory windows, which soft-iWARP does not have"
must on c1 'modprobe rdma_ucm'
limit=$((2 * slow))

# volume: exports a drive that can be made to hang
volume() {
	export_volume vol1 /dev/mapper/hangs --wwid=6f0c2b62-5f5e-4c0e-9d57-0b8f3e9b0a45 c1
}
# hold NAME OPTION…: starts a program that reads one block after the other, and writes the changes of its session to /tmp/NAME
hold() {
	ON_SECONDS=600 spawn "$1" c1 "hcablk-user ${*:2} $target_address vol1 hold > /tmp/$1 2>&1 & echo \$! > /tmp/$1.pid; wait \$!"
	must wait_until c1 60 "grep -q '^open' /tmp/$1"
}
# says NAME TEXT: waits until the program has printed the text
says() {
	wait_until c1 100 "grep -q '$2' /tmp/$1"
}
killed() {
	must on c1 "kill -9 \$(cat /tmp/$1.pid)"
	join "$1"
}

must on target "modprobe dm_mod && echo '0 131072 linear $drive 0' | dmsetup create hangs && dmsetup mknodes"
volume
hold polled --io-timeout=$limit --small-read=0
hold events --io-timeout=$limit --event
hold patient --io-timeout=600
must on target 'dmsetup suspend --nolockfs hangs'
check "the drive hangs: a session with polled requests ends" says polled "^lost: .*a request got no response for $limit s"
check "the drive hangs: a session with event-driven requests ends" says events "^lost: .*a request got no response for $limit s"
refuse "the drive hangs: a session with a longer io-timeout does not end" on c1 'grep -q "^lost" /tmp/patient'
must on target 'dmsetup resume hangs'
for name in polled events; do
	check "the drive continues: the program has a new session ($name)" says $name '^reconnects 1'
	refuse "no request has failed ($name)" on c1 "grep -q '^ended' /tmp/$name"
	killed $name
done
killed patient
must wait_until target 60 "$no_queue_pairs"

hold gone --io-timeout=$limit --ctrl-loss-tmo=$((3 * slow))
must on target 'dmsetup suspend --nolockfs hangs'
check "the drive hangs beyond ctrl-loss-tmo: the program ends" join gone
like "the program reports that the drive is slow" '^ended: .*(took too long|a request got no response)' "$(on c1 'grep ^ended /tmp/gone')"
must on target 'dmsetup resume hangs'
must wait_until target 60 "$no_queue_pairs"

hold away --ctrl-loss-tmo=$((3 * slow))
must on target 'hcablk target unexport --force vol1'
check "the volume is missing beyond ctrl-loss-tmo: the program ends" join away
like "the program reports that the volume is missing" '^ended: .*exports no volume of this name' "$(on c1 'grep ^ended /tmp/away')"
volume

hold fast --fast-io-fail-tmo=$((1 * slow)) --event
must on target 'hcablk target unexport --force vol1'
check "the volume is missing beyond fast-io-fail-tmo: requests fail" says fast '^failed: '
volume
check "the volume is back: requests succeed" says fast '^works again'
refuse "the volume was open all the time" on c1 'grep -q ^ended /tmp/fast'
killed fast

# The drive hangs, so the target cannot make writes durable. A client that will not reconnect does not wait for that.
hold hasty --io-timeout=600 --ctrl-loss-tmo=0
must on target 'dmsetup suspend --nolockfs hangs'
begin=$SECONDS
spawn unexport target 'hcablk target unexport --force vol1'
must join hasty
less "the export of a hung drive ends: a program that does not reconnect ends at once" $((SECONDS - begin)) $((8 * slow))
must on target 'dmsetup resume hangs'
must join unexport
volume

hold one --session=7
like "a session number in use is refused to another program" "another program of this host has session 7" \
	"$(on c1 "hcablk-user --session=7 $target_address vol1 info" 2>&1)"
check "another session number is accepted" on c1 "hcablk-user --session=8 $target_address vol1 info"
killed one
check "the session number is free when its program is killed" on c1 "hcablk-user --session=7 $target_address vol1 info"
must on target 'hcablk target unexport vol1 && dmsetup remove hangs'

# A drive whose second half is always late, and is the first half under other addresses.
must on target "printf '0 65536 linear $drive 0\n65536 65536 delay $drive 0 0 $drive 0 $((4000 * slow))\n' | dmsetup create hangs && dmsetup mknodes"
volume
late="hcablk-user --queues=2 --io-timeout=$limit --ctrl-loss-tmo=$((4 * slow)) $target_address vol1 late $((32 << 20)) > /tmp/late 2>&1"
ON_SECONDS=$((60 * slow)) check "a write that is late again and again ends" on c1 "$late"
like "the late write ends with an error" '^late write: the session has ended: .*a request got no response' "$(on c1 'grep "^late write" /tmp/late')"
less "the late write ends in time" "$(on c1 "awk '/^milliseconds/ { print \$2 }' /tmp/late")" $(((4 * slow + 2 * limit) * 1000 + limit * 500))
less "the late write was issued again before" 1 "$(on c1 "grep -c '^lost' /tmp/late")"
same "other requests succeed" "next write: kept reads: kept" "$(on c1 "tail -n 2 /tmp/late | xargs")"
must wait_until target 60 "$no_queue_pairs"
must on target 'dmsetup suspend hangs && dmsetup resume hangs'
same "the late write reached the drive before the next one" 0 "$(on target "dd if=$drive bs=512 count=1 iflag=direct status=none | tr -d '\273' | wc -c")"
must on target 'hcablk target unexport vol1 && dmsetup remove hangs'
