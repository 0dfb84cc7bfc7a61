#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: every state of a disk and its paths is told by tracepoints, in order, and those that last by uevents of the disk.
# turn: 22
# takes: 30
# waits: yes

. "${0%/*}/../lib/lib.sh"
. "${0%/*}/../lib/multi.sh"

tracing=/sys/kernel/tracing
two_cards 1 target c1
target_address=10.77.1.1
export_volume vol1 "$drive" c1
must on c1 "modprobe hcablk && echo 1 > $tracing/events/hcablk/hcablk_disk/enable && echo 1 > $tracing/events/hcablk/hcablk_path/enable"
# One event a line: the disk's states, and those of paths behind their numbers.
must on c1 'cat > /tmp/listen << "END"
[ -z "$HCABLK_STATE" ] || echo "$HCABLK_DISK $ACTION $DEVNAME $HCABLK_PATH $HCABLK_STATE: $HCABLK_ERROR" >> /tmp/uevents
[ -z "$DISK_RO" ] || echo "$ACTION $DEVNAME DISK_RO=$DISK_RO" >> /tmp/uevents
[ "$ACTION" != remove ] || [ "$SUBSYSTEM" != block ] || echo "remove $DEVNAME" >> /tmp/uevents
[ "$DEVNAME" != null ] || echo marker >> /tmp/uevents
END'
spawn listener c1 'echo $$ > /tmp/listener; exec busybox uevent sh /tmp/listen'
# Somebody listens for uevents: the fourth column has the groups.
must wait_until c1 30 "awk '\$2 == 15 && \$4 !~ /^0+\$/' /proc/net/netlink | grep -q ."

# told GUEST PATH: its states, or the disk's (-1), by tracepoints; uevents WHAT: those of lines with WHAT
told() {
	on "$1" "sed -n 's/.*disk=vol1 path=$2 state=\\([a-z-]*\\) .*/\\1/p' $tracing/trace" | tr '\n' ' '
}
uevents() {
	on c1 "grep '$1' /tmp/uevents" | sed "s/^vol1 change $disk //; s/: .*//" | tr '\n' ' '
}
connect c1 vol1 --ctrl-loss-tmo 600 --queues 2
add_path c1 vol1 1 10.77.2.1
must disk_is c1 vol1 live
like "a path of the disk comes up" "^connecting (waiting connecting )*live $" "$(told c1 1)"
same "the disk is degraded meanwhile" "connecting live degraded live " "$(told c1 -1)"
check "uevents say so" wait_until c1 30 '[ $(grep -c "  live:" /tmp/uevents) = 2 ] && grep -q " 1 live:" /tmp/uevents'
same "of the disk" " live  degraded  live " "$(uevents '  [a-z]*:')"
same "and of the path" "1 live " "$(uevents ' 1 [a-z]*:')"

# Who sends uevents waits for memory, and that perhaps for this disk: whoever brings that back sends none.
must on c1 ': > /tmp/uevents; echo > /sys/kernel/tracing/trace'
# The debug kernel, which is slow, has no probes.
if [ "$slow" = 1 ]; then
	must on c1 "echo 'p:sends netlink_broadcast' > $tracing/kprobe_events && echo stacktrace > $tracing/events/kprobes/sends/trigger && echo 1 > $tracing/events/kprobes/sends/enable"
fi
cut path2
check "a path is lost" wait_until c1 60 'grep -q " 1 lost:" /tmp/uevents'
like "the uevent says why" " 1 lost: .+" "$(on c1 'cat /tmp/uevents')"
cut path1
check "all are: the disk waits" wait_until c1 60 'grep -q "  queueing:" /tmp/uevents'
must on target "blockdev --setro $drive"
mend path1
mend path2
check "all are back" wait_until c1 60 'grep -q "  live:" /tmp/uevents'
like "path 1 was lost and came back" "^lost waiting connecting (waiting connecting )*live $" "$(told c1 1)"
like "so was path 0" "^lost waiting connecting (waiting connecting )*live $" "$(told c1 0)"
like "uevents tell of what lasts" "^1 lost 1 live $" "$(uevents ' 1 [a-z]*:')"
check "that nobody may write any more is told, too" wait_until c1 30 "grep -q '^change $disk DISK_RO=1\$' /tmp/uevents"
# Both paths may be back at once.
like "the disk went through these" "^degraded queueing (degraded )?live $" "$(told c1 -1)"
like "by uevents, too" "^ degraded  queueing ( degraded )? live $" "$(uevents '  [a-z]*:')"

if [ "$slow" = 1 ]; then
	# Rust's names have those of the crates and types.
	sent=$(on c1 "awk '/^ => .*initiator.*Announcements/ { own++ } /^ => .*initiator.*(Session|Path|Device)[^A-Za-z]*.*(run|tear_down|tell_changes|session_lost)/ { other++ } END { print own + 0, other + 0 }' $tracing/trace")
	like "uevents are sent by a thread that does nothing else" "^[1-9][0-9]* 0\$" "$sent"
	must on c1 "echo 0 > $tracing/events/kprobes/sends/enable && echo '!stacktrace' > $tracing/events/kprobes/sends/trigger && echo > $tracing/kprobe_events"
fi

must on c1 'echo > /sys/kernel/tracing/trace'
must on c1 "echo 0 > $initiator/vol1/paths/1/enable"
same "a path is taken away" "new " "$(told c1 1)"
disconnect c1 vol1
must on target "blockdev --setrw $drive"
same "the disk goes" "disconnecting new " "$(told c1 -1)"
check "a uevent says so" wait_until c1 30 "grep -q '^remove $disk\$' /tmp/uevents"
must on c1 'echo change > /sys/class/mem/null/uevent'
must wait_until c1 30 'grep -q marker /tmp/uevents'
same "after which there is none of it" "remove $disk marker " "$(on c1 'tail -n 2 /tmp/uevents' | tr '\n' ' ')"
must on c1 'kill $(cat /tmp/listener)'
! join listener
