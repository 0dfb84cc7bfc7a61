#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: tracepoints report every state of a disk and its paths in order, and uevents of the disk report the lasting states.
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
# One line for each event: the disk's states, and the states of paths after the path's number.
must on c1 'cat > /tmp/listen << "END"
[ -z "$HCABLK_STATE" ] || echo "$HCABLK_DISK $ACTION $DEVNAME $HCABLK_PATH $HCABLK_STATE: $HCABLK_ERROR" >> /tmp/uevents
[ -z "$DISK_RO" ] || echo "$ACTION $DEVNAME DISK_RO=$DISK_RO" >> /tmp/uevents
[ "$ACTION" != remove ] || [ "$SUBSYSTEM" != block ] || echo "remove $DEVNAME" >> /tmp/uevents
[ "$DEVNAME" != null ] || echo marker >> /tmp/uevents
END'
spawn listener c1 'echo $$ > /tmp/listener; exec busybox uevent sh /tmp/listen'
# The listener has a socket for uevents: the fourth column has its groups.
must wait_until c1 30 "awk '\$2 == 15 && \$4 !~ /^0+\$/' /proc/net/netlink | grep -q ."

# traced_states GUEST PATH: prints the states of a path or, for -1, of the disk, from tracepoints; uevents WHAT: those of uevents with WHAT
traced_states() {
	on "$1" "sed -n 's/.*disk=vol1 path=$2 state=\\([a-z-]*\\) .*/\\1/p' $tracing/trace" | tr '\n' ' '
}
uevents() {
	on c1 "grep '$1' /tmp/uevents" | sed "s/^vol1 change $disk //; s/: .*//" | tr '\n' ' '
}
connect c1 vol1 --ctrl-loss-tmo 600 --queues 2
add_path c1 vol1 1 10.77.2.1
must disk_is c1 vol1 live
like "tracepoints report that the path becomes live" "^connecting (waiting connecting )*live $" "$(traced_states c1 1)"
same "tracepoints report that the disk is degraded until then" "connecting live degraded live " "$(traced_states c1 -1)"
check "uevents report that disk and path are live" wait_until c1 30 '[ $(grep -c "  live:" /tmp/uevents) = 2 ] && grep -q " 1 live:" /tmp/uevents'
same "uevents report the states of the disk" " live  degraded  live " "$(uevents '  [a-z]*:')"
same "uevents report the states of the path" "1 live " "$(uevents ' 1 [a-z]*:')"

# Sending a uevent allocates memory, which may wait for this very disk: the thread that reconnects the disk must send none.
must on c1 ': > /tmp/uevents; echo > /sys/kernel/tracing/trace'
# The slow debug kernel has no probes.
if [ "$slow" = 1 ]; then
	must on c1 "echo 'p:sends netlink_broadcast' > $tracing/kprobe_events && echo stacktrace > $tracing/events/kprobes/sends/trigger && echo 1 > $tracing/events/kprobes/sends/enable"
fi
cut path2
check "a uevent reports the loss of a path" wait_until c1 60 'grep -q " 1 lost:" /tmp/uevents'
like "this uevent has the reason" " 1 lost: .+" "$(on c1 'cat /tmp/uevents')"
cut path1
check "a uevent reports that the disk without a path is queueing" wait_until c1 60 'grep -q "  queueing:" /tmp/uevents'
must on target "blockdev --setro $drive"
mend path1
mend path2
check "a uevent reports that the disk is live again" wait_until c1 60 'grep -q "  live:" /tmp/uevents'
like "tracepoints report that path 1 was lost and became live" "^lost waiting connecting (waiting connecting )*live $" "$(traced_states c1 1)"
like "tracepoints report that path 0 was lost and became live" "^lost waiting connecting (waiting connecting )*live $" "$(traced_states c1 0)"
like "uevents report the lasting states of path 1" "^1 lost 1 live $" "$(uevents ' 1 [a-z]*:')"
check "a uevent reports that the disk became read-only" wait_until c1 30 "grep -q '^change $disk DISK_RO=1\$' /tmp/uevents"
# Both paths may become live at once.
like "tracepoints report the disk's states in order" "^degraded queueing (degraded )?live $" "$(traced_states c1 -1)"
like "uevents report the disk's states in order" "^ degraded  queueing ( degraded )? live $" "$(uevents '  [a-z]*:')"

if [ "$slow" = 1 ]; then
	# Names of Rust's functions include crates and types.
	sent=$(on c1 "awk '/^ => .*initiator.*Announcements/ { own++ } /^ => .*initiator.*(Session|Path|Device)[^A-Za-z]*.*(run|tear_down|tell_changes|session_lost)/ { other++ } END { print own + 0, other + 0 }' $tracing/trace")
	like "one thread sends all uevents, and does nothing else" "^[1-9][0-9]* 0\$" "$sent"
	must on c1 "echo 0 > $tracing/events/kprobes/sends/enable && echo '!stacktrace' > $tracing/events/kprobes/sends/trigger && echo > $tracing/kprobe_events"
fi

must on c1 'echo > /sys/kernel/tracing/trace'
must on c1 "echo 0 > $initiator/vol1/paths/1/enable"
same "a tracepoint reports that the path was disabled" "new " "$(traced_states c1 1)"
disconnect c1 vol1
must on target "blockdev --setrw $drive"
same "tracepoints report the disconnect of the disk" "disconnecting new " "$(traced_states c1 -1)"
check "a uevent reports the removal of the disk" wait_until c1 30 "grep -q '^remove $disk\$' /tmp/uevents"
must on c1 'echo change > /sys/class/mem/null/uevent'
must wait_until c1 30 'grep -q marker /tmp/uevents'
same "no uevent of the disk follows its removal" "remove $disk marker " "$(on c1 'tail -n 2 /tmp/uevents' | tr '\n' ' ')"
must on c1 'kill $(cat /tmp/listener)'
! join listener
