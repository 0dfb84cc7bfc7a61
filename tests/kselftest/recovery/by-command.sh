#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: a lost disk is connected again in place by the command, behind its past and to no other volume, and a hanging one is forced off.
# turn: 13
# takes: 35
# waits: yes
# timeout: 480
# expect-log: (EXT4-fs|JBD2|Buffer I/O|Aborting journal).*

. "${0%/*}/../lib/lib.sh"

# The volume's first half can be held up, as by a drive that hangs; the second cannot.
must on target "modprobe dm_mod && echo '0 65536 linear $drive 0' | dmsetup create gate && dmsetup mknodes &&
	printf '0 65536 linear /dev/mapper/gate 0\n65536 65536 linear $drive2 0\n' | dmsetup create both && dmsetup mknodes"
export_volume v /dev/mapper/both c1
settings="--queues 1 --ctrl-loss-tmo 0 --io-timeout $((4 * slow)) --connect-timeout $((6 * slow))"
command="hcablk connect $target_address v $settings"
# block TEXT: a block of it
block() {
	echo "yes $1 | head -c 4k"
}
write_block() {
	echo "$(block "$2") > /tmp/block && dd if=/tmp/block of=$1 bs=4k count=1 oflag=direct conv=notrunc"
}
state() {
	on c1 "cat $initiator/v/state"
}

# shellcheck disable=SC2086 # a list of words
connect c1 v $settings
must on target 'dmsetup suspend --nolockfs gate'
spawn old c1 "$(write_block "$device" old)"
check "the disk is lost while the drive has a write of it" wait_until c1 $((40 * slow)) "grep -q failed $initiator/v/state"
refuse "the write fails" join old

# What is left of its past at the target is in the drive: nothing may come before that.
refuse "it is not connected again while the drive has that" on c1 "$command"
same "it is still lost" failed "$(state)"
must on c1 'hcablk disconnect v'
refuse "nor when it was forgotten meanwhile" on c1 "$command"
refuse "of which nothing is left" on c1 "[ -e $initiator/v ]"
must on target 'dmsetup resume gate'
check "when the drive has finished it is connected" wait_until c1 $((60 * slow)) "$command"
device=$(on c1 "$command")
must on c1 "$(write_block "$device" new)"
same "the old write does not come after the new one" "$(on c1 "$(block new) | sha256sum")" \
	"$(on target 'dd if=/dev/mapper/both bs=4k count=1 iflag=direct | sha256sum')"

# Lost again, and another drive is there under the name.
must on target 'hcablk target unexport --force v'
must wait_until c1 $((30 * slow)) "grep -q failed $initiator/v/state"
export_volume v /dev/drive2 c1
output=$(on c1 "$command" 2>&1)
like "another volume is not taken for the lost one" 'not the one that was connected before' "$output"
same "it is lost as before" failed "$(state)"
must on target 'hcablk target unexport v'
export_volume v /dev/mapper/both c1
check "the right one is connected again in place" on c1 "$command"
device=$(on c1 "$command")

# The disk is open and its drive hangs.
must on c1 "mkdir -p /mnt/v && modprobe ext4 && mkfs.ext4 -q -F $device 24M && mount $device /mnt/v"
must on target 'dmsetup suspend --nolockfs gate'
spawn writer c1 "dd if=/dev/zero of=/mnt/v/file bs=4k count=64 oflag=direct"
must wait_until c1 $((20 * slow)) "awk '{ exit !(\$1 + \$2 > 0) }' /sys/block/${device#/dev/}/inflight"
refuse "a disk that is mounted is not disconnected" on c1 'hcablk disconnect v'
check "by force it is" on c1 'hcablk disconnect --force v'
refuse "there is no disk" on c1 "[ -e $device ]"
refuse "what was written fails" join writer
on c1 'umount /mnt/v' >&2
check "a second time there is nothing to do" on c1 'hcablk disconnect --force --if-exists v'
must on target 'dmsetup resume gate'
check "the target forgets it" wait_until target $((60 * slow)) "[ -z \"\$(cat $target/volumes/v/clients)\" ]"
must on target 'hcablk target unexport v && dmsetup remove both && dmsetup remove gate'
