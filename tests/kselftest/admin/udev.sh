#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: with the package's rules udev makes the links by-id, by-uuid and by-label of a disk and its partitions, and follows changes.
# turn: 23
# takes: 30
# guests: target c1

. "${0%/*}/../lib/lib.sh"

uuid=0a3407de-014b-458b-b5c1-848e92a327a3

# links_to NAME PATH: waits until a link below /dev/disk leads to PATH
links_to() {
	wait_until c1 30 "[ \"\$(readlink -f /dev/disk/$1)\" = $2 ]"
}

must on c1 'mkdir -p /run/udev && /usr/lib/systemd/systemd-udevd --daemon'
trap 'code=$?; on c1 "udevadm control --exit" > /dev/null 2>&1; (exit $code); _finish' EXIT
export_volume vol1 "$drive" c1
# One hardware queue: the kernel would choose a scheduler for such a disk.
connect c1 vol1 --queues 1 --ctrl-loss-tmo 600 --keep-alive-tmo 1
wwid=$(on c1 "cat /sys/block/$disk/wwid")
like "the disk has a wwid" '^uuid\.[0-9a-f-]{36}$' "$wwid"
check "by-id leads to the disk" links_to "by-id/hcablk-$wwid" "$device"
check "the disk has no I/O scheduler" wait_until c1 30 "grep -q '\[none\]' /sys/block/$disk/queue/scheduler"
like "systemd starts the limit of a shutdown when the disk is connected" '^SYSTEMD_WANTS=hcablk-shutdown\.service$' \
	"$(on c1 "udevadm info --query=property --name=$device | grep SYSTEMD_WANTS")"
must on c1 "env echo mq-deadline > /sys/block/$disk/queue/scheduler && udevadm trigger --settle --action=change /sys/block/$disk"
like "a change event keeps the scheduler that the administrator chose" '\[mq-deadline\]' "$(on c1 "cat /sys/block/$disk/queue/scheduler")"
must on c1 "udevadm trigger --settle --action=add /sys/block/$disk"
like "an add event sets the scheduler to none" '\[none\]' "$(on c1 "cat /sys/block/$disk/queue/scheduler")"
must on c1 "mkfs.ext4 -q -L shared -U $uuid $device"
check "a new file system gets a by-uuid link" links_to by-uuid/$uuid "$device"
check "a new file system gets a by-label link" links_to by-label/shared "$device"
check "the file system is mounted by its UUID" on c1 "mkdir -p /mnt && mount UUID=$uuid /mnt && umount /mnt"

# The disk cannot be read now: udev must not try on an event about a change of state.
must vm pause target
check "the disk has no path" wait_until c1 60 "grep -q queueing $initiator/vol1/state"
check "udev settles while the disk has no path" on c1 'udevadm settle --timeout=20'
check "the by-uuid link stays while the disk has no path" links_to by-uuid/$uuid "$device"
must vm resume target
check "the disk is back" wait_until c1 60 "grep -q live $initiator/vol1/state"
must on c1 'udevadm settle --timeout=60'
check "the by-label link is there when the disk is back" links_to by-label/shared "$device"

# udev has no reason to read when it gets an event about lost writes.
must on c1 "dd if=/dev/zero of=$device bs=4k seek=1024 count=1 oflag=direct conv=notrunc"
must vm link-down target 0
must wait_until c1 60 "grep -q queueing $initiator/vol1/state"
must on target 'hcablk target unexport --force vol1'
must vm link-up target 0
export_volume vol1 "$drive" c1
must wait_until c1 60 "grep -q live $initiator/vol1/state && grep -qx 1 $initiator/vol1/lost_writes"
must on c1 'udevadm settle --timeout=60'
reads() {
	on c1 "awk '{ print \$1 }' /sys/block/$disk/stat"
}
before=$(reads)
must on c1 'hcablk acknowledge-loss vol1 && udevadm settle --timeout=60'
same "udev reads nothing on an event about lost writes" "$before" "$(reads)"
check "the by-uuid link stays after an event about lost writes" links_to by-uuid/$uuid "$device"

must on c1 "wipefs -a $device > /dev/null 2>&1 || dd if=/dev/zero of=$device bs=1M count=4 oflag=direct 2> /dev/null"
check "a wiped file system loses its by-uuid link" wait_until c1 30 "[ ! -e /dev/disk/by-uuid/$uuid ]"
must on c1 "printf 'label: gpt\nsize=100M, name=first, uuid=$uuid\n' | sfdisk -q --wipe always $device"
part=${device}p1
check "a partition gets a by-partuuid link" links_to by-partuuid/$uuid "$part"
check "a partition gets a by-partlabel link" links_to by-partlabel/first "$part"
check "a partition gets a by-id link" links_to "by-id/hcablk-$wwid-part1" "$part"
must on c1 "mkfs.ext4 -q -L inner $part"
check "the partition's file system gets a by-label link" links_to by-label/inner "$part"

disconnect c1 vol1
check "no link is left when the disk is removed" wait_until c1 30 "! ls /dev/disk/by-id/hcablk-* /dev/disk/by-label/inner > /dev/null 2>&1"
check "udev ends" on c1 'udevadm control --exit'
