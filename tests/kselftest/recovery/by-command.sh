#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: the connect command reconnects a lost disk in place, only after the drive has finished its old requests and only to the same volume; a hung disk is disconnected by force.
# turn: 13
# takes: 35
# waits: yes
# timeout: 480
# expect-log: (EXT4-fs|JBD2|Buffer I/O|Aborting journal).*

. "${0%/*}/../lib/lib.sh"

# The first half of the volume can be held up, as a hung drive would; the second half cannot.
must on target "modprobe dm_mod && echo '0 65536 linear $drive 0' | dmsetup create gate && dmsetup mknodes &&
	printf '0 65536 linear /dev/mapper/gate 0\n65536 65536 linear $drive2 0\n' | dmsetup create both && dmsetup mknodes"
export_volume v /dev/mapper/both c1
settings="--queues 1 --ctrl-loss-tmo 0 --io-timeout $((4 * slow)) --connect-timeout $((6 * slow))"
command="hcablk connect $target_address v $settings"
# block TEXT: prints the command that prints a block of the text
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
check "the disk is lost while the drive holds one of its writes" wait_until c1 $((40 * slow)) "grep -q failed $initiator/v/state"
refuse "the write fails" join old

# The drive still holds a request of the lost session: no new session may begin before it has finished.
refuse "connect is refused while the drive holds the old write" on c1 "$command"
same "the disk is still lost after the refused connect" failed "$(state)"
must on c1 'hcablk disconnect v'
refuse "connect is refused even after the host has forgotten the disk" on c1 "$command"
refuse "the refused connect leaves no device in configfs" on c1 "[ -e $initiator/v ]"
must on target 'dmsetup resume gate'
check "the volume is connected when the drive has finished" wait_until c1 $((60 * slow)) "$command"
device=$(on c1 "$command")
must on c1 "$(write_block "$device" new)"
same "the old write does not overwrite the new one" "$(on c1 "$(block new) | sha256sum")" \
	"$(on target 'dd if=/dev/mapper/both bs=4k count=1 iflag=direct | sha256sum')"

# The disk is lost again, and the name now stands for another drive.
must on target 'hcablk target unexport --force v'
must wait_until c1 $((30 * slow)) "grep -q failed $initiator/v/state"
export_volume v /dev/drive2 c1
output=$(on c1 "$command" 2>&1)
like "another volume of the same name is not connected in place of the lost one" 'not the one that was connected before' "$output"
same "the disk is still lost after the refused volume" failed "$(state)"
must on target 'hcablk target unexport v'
export_volume v /dev/mapper/both c1
check "the right volume is connected again in place" on c1 "$command"
device=$(on c1 "$command")

# The disk is open, and its drive hangs.
must on c1 "mkdir -p /mnt/v && modprobe ext4 && mkfs.ext4 -q -F $device 24M && mount $device /mnt/v"
must on target 'dmsetup suspend --nolockfs gate'
spawn writer c1 "dd if=/dev/zero of=/mnt/v/file bs=4k count=64 oflag=direct"
must wait_until c1 $((20 * slow)) "awk '{ exit !(\$1 + \$2 > 0) }' /sys/block/${device#/dev/}/inflight"
refuse "a mounted disk is not disconnected" on c1 'hcablk disconnect v'
check "a mounted disk is disconnected by force" on c1 'hcablk disconnect --force v'
refuse "the disk is gone" on c1 "[ -e $device ]"
refuse "the write that the drive held fails" join writer
on c1 'umount /mnt/v' >&2
check "disconnecting again with --if-exists succeeds" on c1 'hcablk disconnect --force --if-exists v'
must on target 'dmsetup resume gate'
check "the target ends the session when the drive continues" wait_until target $((60 * slow)) "[ -z \"\$(cat $target/volumes/v/clients)\" ]"
must on target 'hcablk target unexport v && dmsetup remove both && dmsetup remove gate'
