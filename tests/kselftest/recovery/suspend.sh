#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: a client whose programs are frozen for a suspend, under load, while the connection is lost and while requests wait, continues without an error; a freeze that a synchronous request prevents is undone; hibernation is refused while a disk or an export exists, and the log says why.
# turn: 5
# takes: 80
# waits: yes
# timeout: 600
# skips: debug
# expect-log: Call Trace:$

. "${0%/*}/../lib/lib.sh"

[ "$slow" = 1 ] || skip "the debug kernel cannot be suspended"

export_volume vol1 "$drive" c1
connect c1 vol1 --ctrl-loss-tmo 600 --keep-alive-tmo 2

# freeze: freezes all programs as a suspend to idle does; the kernel waits pm_test_delay seconds and thaws them. Fails if one cannot be frozen. Devices are
# not suspended: the channel between tests and guest would not survive that.
freezing="echo freezer > /sys/power/pm_test && echo freeze > /sys/power/state; rc=\$?; echo none > /sys/power/pm_test; exit \$rc"
freeze() {
	ON_SECONDS=120 on c1 "$freezing"
}

ON_SECONDS=300 spawn load c1 "fio --output-format=terse --name=v --filename=$device --direct=1 --ioengine=libaio --rw=randrw --bs=16k \
	--iodepth=16 --size=24M --verify=crc32c --verify_fatal=1 --time_based --runtime=10"
must wait_until c1 30 "awk '{ exit !(\$1 + \$5 > 100) }' /sys/block/$disk/stat"
check "programs are frozen under load" freeze
check "the data written over the freeze is read back" join load
check "the disk is live after the freeze" wait_until c1 60 "[ \$(cat $initiator/vol1/state) = live ]"
same "no request has failed" 0 "$(stat_of c1 $initiator/vol1 errors)"

# The connection is lost and restored while all programs are frozen: only threads of the kernel run then.
must on c1 "echo 40 > /sys/module/suspend/parameters/pm_test_delay"
ON_SECONDS=120 spawn frozen c1 "$freezing"
must wait_log c1 30 'suspend debug: Waiting for 40'
for card in eth0 eth1; do
	netem target $card loss 100%
done
check "the connection is lost during the freeze" wait_log c1 30 'vol1: connection lost: .* wait for a new connection'
for card in eth0 eth1; do
	netem target $card
done
check "the connection is restored during the freeze" wait_log c1 30 'vol1: connection restored'
check "programs continue after the freeze" join frozen
same "the connection was restored before the programs continued" "restored Restarting" \
	"$(in_log c1 'vol1: connection restored|Restarting tasks: Starting' | tail -n 2 | grep -o 'restored\|Restarting' | xargs)"
must on c1 "echo 5 > /sys/module/suspend/parameters/pm_test_delay"
same "no request has failed by the freeze without a connection" 0 "$(stat_of c1 $initiator/vol1 errors)"

# Requests wait for a target that does not respond. A program that waits in io_getevents(2) can be frozen.
for card in eth0 eth1; do
	netem target $card loss 100%
done
must wait_until c1 60 "[ \$(cat $initiator/vol1/state) = queueing ]"
spawn waits c1 "fio --output-format=terse --name=v --filename=$device --direct=1 --ioengine=libaio --rw=read --bs=4k --iodepth=4 --size=16k"
must wait_until c1 60 "awk -F= '/^busy=/ { n += \$2 } END { exit n != 4 }' /sys/kernel/debug/block/$disk/hctx*/tags"
check "programs are frozen while their asynchronous requests wait" freeze
# A program that reads synchronously waits uninterruptibly, as on every disk: the kernel gives up, and thaws what it has frozen.
spawn reads c1 "echo \$\$ > /tmp/reads; exec dd if=$device of=/dev/null bs=4k count=1 iflag=direct"
must wait_until c1 60 "grep -q '^State:[[:space:]]*D' /proc/\$(cat /tmp/reads)/status"
must on c1 "echo 2000 > /sys/power/pm_freeze_timeout"
refuse "programs are not frozen while a synchronous read waits" freeze
check "the client logs which program cannot be frozen" wait_log c1 30 'task:dd +state:D'
same "the disk still waits for its target" queueing "$(on c1 "cat $initiator/vol1/state")"
for card in eth0 eth1; do
	netem target $card
done
check "the asynchronous requests succeed when the target responds again" join waits
check "the synchronous read succeeds when the target responds again" join reads
check "the disk is live when the target responds again" wait_until c1 60 "[ \$(cat $initiator/vol1/state) = live ]"
check "memory of every shape" on c1 "hcablk-scatter $device random $RANDOM 12"

for guest in c1 target; do
	refuse "$guest: hibernation is refused" on $guest "echo disk > /sys/power/state"
done
check "the client logs why hibernation is refused" wait_log c1 30 'hibernation is refused: 1 disks of hcablk are connected'
check "the target logs why hibernation is refused" wait_log target 30 'hibernation is refused: 1 volumes of hcablk are exported'
disconnect c1 vol1
