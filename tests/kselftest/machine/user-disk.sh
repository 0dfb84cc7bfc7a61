#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: on a Debian machine without a module of ours a disk in user space is connected, kept by systemd and udev when its program is killed, disconnected as others are, and mounted at boot.
# takes: 500
# guests: mt m1
# timeout: 3000

. "${0%/*}/../lib/lib.sh"
. "${0%/*}/../lib/machine.sh"

uuid=5d9f0a0e-8e3a-4d0c-9b1c-0c7e0f6f7a11
unit=hcablk-ublk@data.service
volumes=/sys/kernel/config/hcablk_target/volumes

# install PACKAGE…: on the client
install() {
	on c1 "mount -r LABEL=packages /mnt && DEBIAN_FRONTEND=noninteractive apt-get install -y ${*/#//mnt/}; r=\$?; umount /mnt; exit \$r"
}
# state WORD: `hcablk list` comes to show the disk so
state() {
	wait_until c1 120 "hcablk list --json | jq -e '.devices[] | select(.name == \"data\" and .kind == \"user\" and .state == \"$1\")'"
}
# left_on_client: what there is of disks in user space
left_on_client() {
	on c1 'ls /run/hcablk/ublk/*.wanted /run/hcablk/ublk/*.failed /run/hcablk/ublk/*.json /run/hcablk/ublk/*.state /dev/ublkb* 2> /dev/null
		systemctl list-units --all --plain --no-legend "hcablk-ublk@*"'
}

started target c1
install_packages target
check "the command is installed" install 'hcablk_*.deb'
like "without the program it is said what is missing" "hcablk-ublk.*is not installed" "$(on c1 "hcablk connect --user $target_address data" 2>&1)"
check "the program is installed" install 'hcablk-ublk_*.deb'
exchange_keys c1
must on target "hcablk target listen --address $target_address && hcablk target export data $machine_drive --allow $(on c1 'hcablk host-id')"
wwid=$(on target "cat $volumes/data/wwid")

like "a volume that is not there makes no disk" "cannot connect to volume nosuch.*no volume of this name" \
	"$(on c1 "hcablk connect --user $target_address nosuch" 2>&1)"
silent "and leaves nothing" left_on_client
like "nor does an address where nobody listens" "cannot connect to volume data at .* port 7999" "$(on c1 "hcablk connect --user --port 7999 $target_address data" 2>&1)"
silent "nor does that leave anything" left_on_client

must on c1 "mkdir -p /run/systemd/system/hcablk-ublk@data.service.d &&
	printf '[Service]\nExecStart=\nExecStart=/bin/sh -c \"exit 127\"\n' > /run/systemd/system/hcablk-ublk@data.service.d/broken.conf && systemctl daemon-reload"
like "a program that cannot run is not awaited for ever" "has exited with 127" "$(on c1 "hcablk connect --user $target_address data" 2>&1)"
must on c1 'rm -r /run/systemd/system/hcablk-ublk@data.service.d && systemctl daemon-reload'
silent "it leaves nothing" left_on_client

same "a disk is connected" /dev/ublkb0 "$(on c1 "hcablk connect --user $target_address data")"
same "connecting again changes nothing" "/dev/ublkb0 false" \
	"$(on c1 "hcablk connect --user $target_address data --json | jq -r '.result | \"\(.device) \(.changed)\"'")"
silent "no module of ours is loaded" on c1 'lsmod | grep -E "^hcablk" || true'
check "it is listed" state live
same "by its wwid, too" "$wwid" "$(on c1 'hcablk list --json | jq -r ".devices[0].wwid"')"
by_id=/dev/disk/by-id/hcablk-uuid.$wwid
check "by-id leads to it" wait_until c1 60 "[ \"\$(readlink -f $by_id)\" = /dev/ublkb0 ]"
check "it has no I/O scheduler" on c1 'grep -q "\[none\]" /sys/block/ublkb0/queue/scheduler'
check "a file system is made by that, and mounted by its UUID" on c1 "mkfs.ext4 -q -U $uuid $by_id &&
	udevadm settle && mkdir -p /srv/db && mount UUID=$uuid /srv/db"

# Its program is killed under load.
must on c1 'dd if=/dev/urandom of=/tmp/data bs=64k count=200 status=none'
spawn writer c1 'for n in $(seq 20); do dd if=/tmp/data of=/srv/db/$n bs=64k oflag=direct status=none || exit 1; done; sync -f /srv/db'
must wait_until c1 120 '[ -e /srv/db/3 ]'
must on c1 "kill -9 \$(systemctl show -p MainPID --value $unit)"
check "systemd starts another program" wait_until c1 120 "[ \"\$(systemctl show -p NRestarts --value $unit)\" -ge 1 ] && systemctl is-active $unit"
check "and the writer goes on" join writer
check "the disk is live" state live
refuse "nobody saw an error" on c1 'dmesg | grep -q "ublkb0.*error"'
check "what was written is there" on c1 'echo 3 > /proc/sys/vm/drop_caches; for n in $(seq 20); do cmp /tmp/data /srv/db/$n || exit 1; done'
check "by-id still leads to it" on c1 "[ \"\$(readlink -f $by_id)\" = /dev/ublkb0 ]"

like "a disk in use is not disconnected" "in use.*umount /srv/db" "$(on c1 'hcablk disconnect data' 2>&1 | tr '\n' ' ')"
same "and exits with 4" 4 "$(on c1 'hcablk disconnect data > /dev/null 2>&1; echo $?')"
check "it goes on" on c1 'echo more > /srv/db/more && sync -f /srv/db'
like "what it does not have is said" "no counters" "$(on c1 'hcablk stats data' 2>&1)"

# The package is upgraded, and not removed, under a disk that is in use.
program=$(on c1 "systemctl show -p MainPID --value $unit")
check "the package is installed again" on c1 "mount -r LABEL=packages /mnt &&
	DEBIAN_FRONTEND=noninteractive apt-get install -y --reinstall /mnt/hcablk-ublk_*.deb; r=\$?; umount /mnt; exit \$r"
same "the disk's program goes on" "$program" "$(on c1 "systemctl show -p MainPID --value $unit")"
must on c1 "kill -9 $program"
check "and so does the disk with the new program" wait_until c1 120 "systemctl is-active $unit && echo new > /srv/db/new && sync -f /srv/db"
like "the package is not removed" "there are disks of this program: /dev/ublkb0" "$(on c1 'DEBIAN_FRONTEND=noninteractive apt-get remove -y hcablk-ublk' 2>&1 | tr '\n' ' ')"
check "and is there" on c1 'hcablk-ublk list | grep -q "^/dev/ublkb0 data served"'

# A disk that is not the one that was saved is another program's.
must on c1 'cd /run/hcablk/ublk && cp -p 0.json 0.state /tmp/ && sed -i "s/\"mark\": [0-9]*/\"mark\": 1/" 0.json && udevadm trigger --settle --action=change /sys/block/ublkb0'
refuse "a disk with another mark gets no link" on c1 "[ -e $by_id ]"
must on c1 'hcablk-ublk remove --force 0'
check "and is not touched" on c1 'echo still > /srv/db/still && sync -f /srv/db && [ -e /dev/ublkb0 ]'
must on c1 'cp -p /tmp/0.json /tmp/0.state /run/hcablk/ublk/ && udevadm trigger --settle --action=change /sys/block/ublkb0'
check "with its own it has its link again" on c1 "[ \"\$(readlink -f $by_id)\" = /dev/ublkb0 ]"

# A unit that is stopped while the disk is in use waits for its users.
spawn stop c1 "systemctl stop $unit"
check "it is told that the disk is in use" wait_until c1 60 "journalctl -u $unit | grep -q 'is in use, and ends when it is unmounted'"
must on c1 'cat /srv/db/still && umount /srv/db'
check "when it is unmounted the unit stops" join stop
check "and the disk is gone" wait_until c1 60 '[ ! -e /sys/block/ublkb0 ]'

must on c1 "hcablk connect --user $target_address data"
same "what was written is there in the next connection" still "$(on c1 "mount UUID=$uuid /srv/db; cat /srv/db/still; umount /srv/db")"
check "it is disconnected" on c1 'hcablk disconnect data'
silent "nothing is left here" left_on_client
check "nor at the target" wait_until target 60 "[ -z \"\$(cat $volumes/data/clients)\" ]"
refuse "and there is none to be disconnected" on c1 'hcablk disconnect data'

# At boot, and at shutdown.
must on c1 "printf '[disk.data]\naddress = \"%s\"\nuser = true\nqueues = 2\n' $target_address > /etc/hcablk/hcablk.toml"
check "its service is enabled, and starts" on c1 'systemctl enable --now hcablk@data'
same "the disk has the settings that are configured" 2 "$(on c1 'hcablk list --json | jq ".devices[0].queues"')"
silent "it is as configured" on c1 'hcablk config diff 2> /dev/null'
must on c1 "sed -n 's/^UUID=[^ ]* *\(.*ext4 .*\)/UUID=$uuid \1/p' /usr/share/doc/hcablk/examples/fstab | sed 's/@db/@data/g' >> /etc/fstab && systemctl daemon-reload"
check "what fstab says is mounted" on c1 'mount /srv/db'
must on c1 'echo booted > /srv/db/boot && sync -f /srv/db'
shut_down c1
same "the file system was unmounted before the disk went" clean \
	"$(on target "dumpe2fs -h $machine_drive 2> /dev/null | sed -n 's/^Filesystem state: *//p'")"
silent "the client took its leave" on target "cat $volumes/data/clients"
boot c1
started c1
check "it is mounted again" wait_until c1 400 'findmnt -n -o SOURCE /srv/db | grep -q "^/dev/ublkb"'
same "and what was written is there" booted "$(on c1 'cat /srv/db/boot')"
silent "still without a module of ours" on c1 'lsmod | grep -E "^hcablk" || true'
check "the service is stopped" on c1 'systemctl stop hcablk@data'
refuse "which unmounts it first" on c1 'findmnt /srv/db'
silent "and nothing is left here" left_on_client
