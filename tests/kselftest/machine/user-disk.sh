#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: on a Debian machine without our modules, a disk in user space connects, survives the kill of its program through systemd and udev, disconnects like other disks, and is mounted at boot.
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
# state WORD: waits until `hcablk list` shows the disk in this state
state() {
	wait_until c1 120 "hcablk list --json | jq -e '.devices[] | select(.name == \"data\" and .kind == \"user\" and .state == \"$1\")'"
}
# left_on_client: prints all traces of disks in user space
left_on_client() {
	on c1 'ls /run/hcablk/ublk/*.wanted /run/hcablk/ublk/*.failed /run/hcablk/ublk/*.json /run/hcablk/ublk/*.state /dev/ublkb* 2> /dev/null
		systemctl list-units --all --plain --no-legend "hcablk-ublk@*"'
}

started target c1
install_packages target
check "the command is installed" install 'hcablk_*.deb'
like "without the program, connect reports what is missing" "hcablk-ublk.*is not installed" "$(on c1 "hcablk connect --user $target_address data" 2>&1)"
check "the program is installed" install 'hcablk-ublk_*.deb'
exchange_keys c1
must on target "hcablk target listen --address $target_address && hcablk target export data $machine_drive --allow $(on c1 'hcablk host-id')"
wwid=$(on target "cat $volumes/data/wwid")

like "a volume that does not exist makes no disk" "cannot connect to volume nosuch.*no volume of this name" \
	"$(on c1 "hcablk connect --user $target_address nosuch" 2>&1)"
silent "a volume that does not exist leaves nothing on the client" left_on_client
like "an address without a listener makes no disk" "cannot connect to volume data at .* port 7999" "$(on c1 "hcablk connect --user --port 7999 $target_address data" 2>&1)"
silent "an address without a listener leaves nothing on the client" left_on_client

must on c1 "mkdir -p /run/systemd/system/hcablk-ublk@data.service.d &&
	printf '[Service]\nExecStart=\nExecStart=/bin/sh -c \"exit 127\"\n' > /run/systemd/system/hcablk-ublk@data.service.d/broken.conf && systemctl daemon-reload"
like "connect does not wait forever for a program that cannot run" "has exited with 127" "$(on c1 "hcablk connect --user $target_address data" 2>&1)"
must on c1 'rm -r /run/systemd/system/hcablk-ublk@data.service.d && systemctl daemon-reload'
silent "a program that cannot run leaves nothing on the client" left_on_client

same "a volume is connected as a disk in user space" /dev/ublkb0 "$(on c1 "hcablk connect --user $target_address data")"
same "connecting the volume again changes nothing" "/dev/ublkb0 false" \
	"$(on c1 "hcablk connect --user $target_address data --json | jq -r '.result | \"\(.device) \(.changed)\"'")"
silent "none of our modules is loaded" on c1 'lsmod | grep -E "^hcablk" || true'
check "the disk is listed as live" state live
same "the disk is listed with its wwid" "$wwid" "$(on c1 'hcablk list --json | jq -r ".devices[0].wwid"')"
by_id=/dev/disk/by-id/hcablk-uuid.$wwid
check "a by-id link leads to the disk" wait_until c1 60 "[ \"\$(readlink -f $by_id)\" = /dev/ublkb0 ]"
check "the disk has no I/O scheduler" on c1 'grep -q "\[none\]" /sys/block/ublkb0/queue/scheduler'
check "a file system is made through the by-id link and mounted by its UUID" on c1 "mkfs.ext4 -q -U $uuid $by_id &&
	udevadm settle && mkdir -p /srv/db && mount UUID=$uuid /srv/db"

# The disk's program is killed under load.
must on c1 'dd if=/dev/urandom of=/tmp/data bs=64k count=200 status=none'
spawn writer c1 'for n in $(seq 20); do dd if=/tmp/data of=/srv/db/$n bs=64k oflag=direct status=none || exit 1; done; sync -f /srv/db'
must wait_until c1 120 '[ -e /srv/db/3 ]'
must on c1 "kill -9 \$(systemctl show -p MainPID --value $unit)"
check "systemd starts another program" wait_until c1 120 "[ \"\$(systemctl show -p NRestarts --value $unit)\" -ge 1 ] && systemctl is-active $unit"
check "the writer ends without an error after its program was killed" join writer
check "the disk is live after its program was killed" state live
refuse "the kernel logged no error of the disk" on c1 'dmesg | grep -q "ublkb0.*error"'
check "all data written over the kill is there" on c1 'echo 3 > /proc/sys/vm/drop_caches; for n in $(seq 20); do cmp /tmp/data /srv/db/$n || exit 1; done'
check "the by-id link still leads to the disk" on c1 "[ \"\$(readlink -f $by_id)\" = /dev/ublkb0 ]"

like "a disk in use is not disconnected" "in use.*umount /srv/db" "$(on c1 'hcablk disconnect data' 2>&1 | tr '\n' ' ')"
same "disconnecting a disk in use exits with 4" 4 "$(on c1 'hcablk disconnect data > /dev/null 2>&1; echo $?')"
check "the disk still works after a refused disconnect" on c1 'echo more > /srv/db/more && sync -f /srv/db'
like "stats reports that the disk has no counters" "no counters" "$(on c1 'hcablk stats data' 2>&1)"

# The package is upgraded while the disk is in use. It cannot be removed.
program=$(on c1 "systemctl show -p MainPID --value $unit")
check "the package is reinstalled" on c1 "mount -r LABEL=packages /mnt &&
	DEBIAN_FRONTEND=noninteractive apt-get install -y --reinstall /mnt/hcablk-ublk_*.deb; r=\$?; umount /mnt; exit \$r"
same "the disk's program keeps running while the package is reinstalled" "$program" "$(on c1 "systemctl show -p MainPID --value $unit")"
must on c1 "kill -9 $program"
check "the reinstalled program serves the disk when the old one is killed" wait_until c1 120 "systemctl is-active $unit && echo new > /srv/db/new && sync -f /srv/db"
like "removing the package of a disk in use is refused" "there are disks of this program: /dev/ublkb0" "$(on c1 'DEBIAN_FRONTEND=noninteractive apt-get remove -y hcablk-ublk' 2>&1 | tr '\n' ' ')"
check "the disk is served after the refused removal" on c1 'hcablk-ublk list | grep -q "^/dev/ublkb0 data served"'

# A device whose mark differs from the saved one belongs to another program.
must on c1 'cd /run/hcablk/ublk && cp -p 0.json 0.state /tmp/ && sed -i "s/\"mark\": [0-9]*/\"mark\": 1/" 0.json && udevadm trigger --settle --action=change /sys/block/ublkb0'
refuse "a disk with another mark gets no link" on c1 "[ -e $by_id ]"
must on c1 'hcablk-ublk remove --force 0'
check "a disk with another mark is not touched" on c1 'echo still > /srv/db/still && sync -f /srv/db && [ -e /dev/ublkb0 ]'
must on c1 'cp -p /tmp/0.json /tmp/0.state /run/hcablk/ublk/ && udevadm trigger --settle --action=change /sys/block/ublkb0'
check "the disk gets its link again with its own mark" on c1 "[ \"\$(readlink -f $by_id)\" = /dev/ublkb0 ]"

# A unit that is stopped while its disk is in use waits for the users of the disk.
spawn stop c1 "systemctl stop $unit"
check "the stopping unit logs that the disk is in use" wait_until c1 60 "journalctl -u $unit | grep -q 'is in use, and ends when it is unmounted'"
must on c1 'cat /srv/db/still && umount /srv/db'
check "the unit stops when the disk is unmounted" join stop
check "the disk is removed when the unit has stopped" wait_until c1 60 '[ ! -e /sys/block/ublkb0 ]'

must on c1 "hcablk connect --user $target_address data"
same "a new connection reads the data written before" still "$(on c1 "mount UUID=$uuid /srv/db; cat /srv/db/still; umount /srv/db")"
check "the disk is disconnected" on c1 'hcablk disconnect data'
silent "disconnecting leaves nothing on the client" left_on_client
check "disconnecting leaves no session at the target" wait_until target 60 "[ -z \"\$(cat $volumes/data/clients)\" ]"
refuse "disconnecting a disk that does not exist is refused" on c1 'hcablk disconnect data'

# Start at boot, and stop at shutdown.
must on c1 "printf '[disk.data]\naddress = \"%s\"\nuser = true\nqueues = 2\n' $target_address > /etc/hcablk/hcablk.toml"
check "the disk's service is enabled and starts" on c1 'systemctl enable --now hcablk@data'
same "the disk has the configured settings" 2 "$(on c1 'hcablk list --json | jq ".devices[0].queues"')"
silent "config diff finds no difference" on c1 'hcablk config diff 2> /dev/null'
must on c1 "sed -n 's/^UUID=[^ ]* *\(.*ext4 .*\)/UUID=$uuid \1/p' /usr/share/doc/hcablk/examples/fstab | sed 's/@db/@data/g' >> /etc/fstab && systemctl daemon-reload"
check "the file system in fstab is mounted" on c1 'mount /srv/db'
must on c1 'echo booted > /srv/db/boot && sync -f /srv/db'
shut_down c1
same "the file system was unmounted before the disk was disconnected" clean \
	"$(on target "dumpe2fs -h $machine_drive 2> /dev/null | sed -n 's/^Filesystem state: *//p'")"
silent "the client has ended its session at the target" on target "cat $volumes/data/clients"
boot c1
started c1
check "the file system is mounted again after a reboot" wait_until c1 400 'findmnt -n -o SOURCE /srv/db | grep -q "^/dev/ublkb"'
same "the data written before the reboot is there" booted "$(on c1 'cat /srv/db/boot')"
silent "none of our modules is loaded after the reboot" on c1 'lsmod | grep -E "^hcablk" || true'
check "the service is stopped" on c1 'systemctl stop hcablk@data'
refuse "stopping the service unmounted the file system first" on c1 'findmnt /srv/db'
silent "stopping the service leaves nothing on the client" left_on_client
