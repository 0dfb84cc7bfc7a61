#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: a client whose programs are frozen for a suspend, under load and while requests wait, continues without an error; hibernation is refused while a disk or an export exists, and the log says why.
# turn: 5
# takes: 50
# waits: yes
# timeout: 600
# skips: debug

. "${0%/*}/../lib/lib.sh"

[ "$slow" = 1 ] || skip "the debug kernel cannot be suspended"

export_volume vol1 "$drive" c1
connect c1 vol1 --ctrl-loss-tmo 600 --keep-alive-tmo 2

# freeze: freezes all programs as a suspend to idle does; the kernel waits five seconds and thaws them. Devices are not suspended:
# the channel between tests and guest would not survive that.
freeze() {
	ON_SECONDS=120 on c1 "echo freezer > /sys/power/pm_test && echo freeze > /sys/power/state; rc=\$?; echo none > /sys/power/pm_test; exit \$rc"
}

ON_SECONDS=300 spawn load c1 "fio --output-format=terse --name=v --filename=$device --direct=1 --ioengine=libaio --rw=randrw --bs=16k \
	--iodepth=16 --size=24M --verify=crc32c --verify_fatal=1 --time_based --runtime=10"
must wait_until c1 30 "awk '{ exit !(\$1 + \$5 > 100) }' /sys/block/$disk/stat"
check "programs are frozen under load" freeze
check "the data written over the freeze is read back" join load
check "the disk is live after the freeze" wait_until c1 60 "[ \$(cat $initiator/vol1/state) = live ]"
same "no request has failed" 0 "$(stat_of c1 $initiator/vol1 errors)"

# Programs are frozen while requests wait for a target that does not answer.
for card in eth0 eth1; do
	netem target $card loss 100%
done
must wait_until c1 60 "[ \$(cat $initiator/vol1/state) = queueing ]"
spawn waits c1 "dd if=$device of=/dev/null bs=4k count=1 iflag=direct"
check "programs are frozen while requests wait" freeze
for card in eth0 eth1; do
	netem target $card
done
check "the requests succeed when the target answers again" join waits
check "the disk is live when the target answers again" wait_until c1 60 "[ \$(cat $initiator/vol1/state) = live ]"
check "memory of every shape" on c1 "hcablk-scatter $device random $RANDOM 12"

for guest in c1 target; do
	refuse "$guest: hibernation is refused" on $guest "echo disk > /sys/power/state"
done
check "the client logs why hibernation is refused" wait_log c1 30 'hibernation is refused: 1 disks of hcablk are connected'
check "the target logs why hibernation is refused" wait_log target 30 'hibernation is refused: 1 volumes of hcablk are exported'
disconnect c1 vol1
