#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: while measuring is on, each request is measured in each of its states, and a slow drive shows as time in the drive.
# tier: heart
# turn: 2
# takes: 10
# alone: it compares times
# timeout: 480

. "${0%/*}/../lib/lib.sh"

# state_value GUEST STATE FIELD: prints count or total_ns, from the command's JSON
state_value() {
	local command='hcablk times' list=devices
	[ "$1" = c1 ] || { command='hcablk target times'; list=volumes; }
	on "$1" "$command slow --json" | jq ".${list}[0].states[] | select(.state == \"$2\") | .$3"
}
# counts: prints the counts of all states, the initiator's first
counts() {
	local state
	for state in queued sent ending; do
		echo -n "$(state_value c1 $state count) "
	done
	for state in waiting fetching drive sending; do
		echo -n "$(state_value target $state count) "
	done
}
# requests N BYTES: does N writes, then N reads, one at a time.
requests() {
	must on c1 "dd if=/dev/zero of=$device bs=$2 count=$1 oflag=direct"
	must on c1 "dd if=$device of=/dev/null bs=$2 count=$1 iflag=direct"
}

# Each request spends 40 ms in the drive.
must on target "modprobe dm_delay && dmsetup create slow --table \"0 65536 delay $drive 0 40\" && dmsetup mknodes"
export_volume slow /dev/mapper/slow c1
connect c1 slow
must on c1 "echo none > /sys/block/$disk/queue/scheduler"

requests 2 64k
same "nothing is measured while measuring is off" "0 0 0 0 0 0 0 " "$(counts)"
must on c1 'hcablk times slow --measure on'
must on target 'hcablk target times slow --measure on'
requests 10 64k
same "each request is counted in each state" "20 20 20 20 10 20 20 " "$(counts)"
requests 10 4k
same "data that comes with its request is not fetched" "40 40 40 40 10 40 40 " "$(counts)"
for guest in c1 target; do
	list=devices
	[ $guest = c1 ] || list=volumes
	command=${list/devices/times}
	same "the classes of each state at $guest add up to its count" true "$(on $guest "hcablk ${command/volumes/target times} --json" |
		jq "[.${list}[0].states[] | .count == ([.classes[].count] | add // 0)] | all")"
done
in_drive=$(state_value target drive total_ns)
sent=$(state_value c1 sent total_ns)
echo "# 40 requests: $((sent / 40000)) us sent, $((in_drive / 40000)) us with the drive" >&2
# dm-delay counts in ticks.
less "the time in the drive is that of the slow drive" $((40 * 35000000)) "$in_drive"
less "the initiator's time contains that of the drive" "$in_drive" "$sent"
less "the drive's share of the target's time is the largest" "$(($(state_value target waiting total_ns) + $(state_value target fetching total_ns)))" "$in_drive"
like "times prints a table" 'slow  *sent  *40 ' "$(on c1 'hcablk times')"

must on c1 'hcablk times --measure off'
must on target 'hcablk target times --measure off'
requests 3 64k
same "measured times stay when measuring is switched off" "40 40 40 40 10 40 40 " "$(counts)"
refuse "the switch accepts only 0 and 1" on c1 "echo 2 > $initiator/slow/timing"

# The switch applies to new sessions, too.
must on target 'hcablk target times slow --measure on'
disconnect c1 slow
connect c1 slow
# The partition scan reads, too.
before=$(state_value target drive count)
requests 5 64k
same "a new session is measured" $((before + 10)) "$(state_value target drive count)"
# watch GUEST STATS: checks until /tmp/watch is removed whether a counter decreases, and records that in /tmp/back. A read of the
# counters may return nothing while the device's directory is removed.
watch() {
	must on "$1" "touch /tmp/watch && (last=0; while [ -e /tmp/watch ]; do
		now=\$(sed -n 's/^reads //p' $2)
		[ \"\$now\" ] || continue
		[ \$now -ge \$last ] || echo \$last to \$now >> /tmp/back
		last=\$now
	done; echo \$last > /tmp/watched) > /dev/null 2>&1 &"
}
watch target $target/volumes/slow/stats
watch c1 $initiator/slow/stats
before=$(counts)
disconnect c1 slow
for guest in c1 target; do
	must on $guest "rm /tmp/watch"
	must wait_until $guest 60 "[ -s /tmp/watched ]"
	silent "$guest's counters do not decrease when the session ends" on $guest '[ ! -e /tmp/back ] || cat /tmp/back'
	less "$guest's counters were read meanwhile" 0 "$(on $guest 'cat /tmp/watched; rm -f /tmp/watched /tmp/back')"
done
same "the target keeps the counts after the session" "${before#* * * }" "$(for s in waiting fetching drive sending; do
	echo -n "$(state_value target $s count) "
done)"
must on target 'hcablk target unexport slow && dmsetup remove slow'
