#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: a drive that hangs, is always late, or goes away holds a program's requests up no longer than io-timeout, ctrl-loss-tmo and fast-io-fail-tmo say; a session number is one program's at a time.
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
# hold NAME OPTION…: a program reads one block after the other, and says in /tmp/NAME what becomes of its session
hold() {
	ON_SECONDS=600 spawn "$1" c1 "hcablk-user ${*:2} $target_address vol1 hold > /tmp/$1 2>&1 & echo \$! > /tmp/$1.pid; wait \$!"
	must wait_until c1 60 "grep -q '^open' /tmp/$1"
}
# says NAME TEXT: a program has printed that
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
check "the drive hangs: a session ends whose requests are polled for" says polled "^lost: .*has not answered a request for $limit s"
check "and one whose requests are waited for" says events "^lost: .*has not answered a request for $limit s"
refuse "one that is more patient does not" on c1 'grep -q "^lost" /tmp/patient'
must on target 'dmsetup resume hangs'
for name in polled events; do
	check "the drive goes on: there is another session for it ($name)" says $name '^reconnects 1'
	refuse "and no request has failed ($name)" on c1 "grep -q '^ended' /tmp/$name"
	killed $name
done
killed patient
must wait_until target 60 "$no_queue_pairs"

hold gone --io-timeout=$limit --ctrl-loss-tmo=$((3 * slow))
must on target 'dmsetup suspend --nolockfs hangs'
check "the drive hangs for longer than ctrl-loss-tmo: the program ends" join gone
like "and knows why" '^ended: .*(took too long|has not answered a request)' "$(on c1 'grep ^ended /tmp/gone')"
must on target 'dmsetup resume hangs'
must wait_until target 60 "$no_queue_pairs"

hold away --ctrl-loss-tmo=$((3 * slow))
must on target 'hcablk target unexport --force vol1'
check "the volume is away for longer than ctrl-loss-tmo: the program ends" join away
like "and knows why" '^ended: .*exports no volume of this name' "$(on c1 'grep ^ended /tmp/away')"
volume

hold fast --fast-io-fail-tmo=$((1 * slow)) --event
must on target 'hcablk target unexport --force vol1'
check "it is away for longer than fast-io-fail-tmo: requests fail" says fast '^failed: '
volume
check "it is back: requests are carried out" says fast '^works again'
refuse "and the volume was open all the time" on c1 'grep -q ^ended /tmp/fast'
killed fast

# The drive hangs, so the target makes nothing durable. A client that wants no other session does not wait for it.
hold hasty --io-timeout=600 --ctrl-loss-tmo=0
must on target 'dmsetup suspend --nolockfs hangs'
begin=$SECONDS
spawn unexport target 'hcablk target unexport --force vol1'
must join hasty
less "an export ends whose drive hangs: a program that would have no other session ends at once" $((SECONDS - begin)) $((8 * slow))
must on target 'dmsetup resume hangs'
must join unexport
volume

hold one --session=7
like "a session number that a program has is no other program's" "another program of this host has session 7" \
	"$(on c1 "hcablk-user --session=7 $target_address vol1 info" 2>&1)"
check "another number is" on c1 "hcablk-user --session=8 $target_address vol1 info"
killed one
check "it is free when the program is killed" on c1 "hcablk-user --session=7 $target_address vol1 info"
must on target 'hcablk target unexport vol1 && dmsetup remove hangs'

# A drive that is always late in its second half, which is the first one again.
must on target "printf '0 65536 linear $drive 0\n65536 65536 delay $drive 0 0 $drive 0 $((4000 * slow))\n' | dmsetup create hangs && dmsetup mknodes"
volume
late="hcablk-user --queues=2 --io-timeout=$limit --ctrl-loss-tmo=$((4 * slow)) $target_address vol1 late $((32 << 20)) > /tmp/late 2>&1"
ON_SECONDS=$((60 * slow)) check "a write that is late again and again ends" on c1 "$late"
like "with an error" '^late write: the session has ended: .*has not answered a request' "$(on c1 'grep "^late write" /tmp/late')"
less "in time" "$(on c1 "awk '/^milliseconds/ { print \$2 }' /tmp/late")" $(((4 * slow + 2 * limit) * 1000 + limit * 500))
less "after it was issued again" 1 "$(on c1 "grep -c '^lost' /tmp/late")"
same "other requests go on" "next write: kept reads: kept" "$(on c1 "tail -n 2 /tmp/late | xargs")"
must wait_until target 60 "$no_queue_pairs"
must on target 'dmsetup suspend hangs && dmsetup resume hangs'
same "and the late write came before the next one" 0 "$(on target "dd if=$drive bs=512 count=1 iflag=direct status=none | tr -d '\273' | wc -c")"
must on target 'hcablk target unexport vol1 && dmsetup remove hangs'
