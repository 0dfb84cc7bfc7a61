#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: on Debian machines with only the packages installed, a file system in /etc/fstab is mounted at each start and survives reboots, power losses and upgrades.
# takes: 600
# guests: mt m1
# timeout: 3600

. "${0%/*}/../lib/lib.sh"
. "${0%/*}/../lib/machine.sh"

uuid=0a3407de-014b-458b-b5c1-848e92a327a3

# writes GUEST TEXT: appends a line to the file and waits until it is on the drive.
writes() {
	on "$1" "echo '$2' >> /srv/db/lines && sync -f /srv/db/lines"
}

# The volumes that are enabled.
exported='cd /sys/kernel/config/hcablk_target/volumes && grep -l 1 */enable | cut -d/ -f1'

started target c1
install_packages target c1
refuse "the target service does not start before its administrator starts it" on target 'systemctl is-active hcablk-target'

exchange_keys c1
reach_target c1
must on target "cat > /etc/hcablk/hcablk.toml << END
[export.db]
device = \"$machine_drive\"
allow = [\"$(on c1 'hcablk host-id')\"]

[export.later]
device = \"/var/tmp/later.img\"

[port.1]
address = \"$target_address\"
END
"
check "the target's service starts" on target 'systemctl start hcablk-target'
same "the volume is exported, though another volume's drive is missing" db "$(on target "$exported")"
check "the journal reports the missing drive" on target 'journalctl -u hcablk-target | grep -q "pending: enable export later: .*/var/tmp/later.img"'
check "systemd lists the missing drive as a failure" wait_until target 60 'systemctl --failed --plain --no-legend | grep -q hcablk-target-retry.service'
# The retry must not undo what the administrator changes by hand.
must on target "hcablk target export mine $machine_drive --read-only --no-port && hcablk target forbid db $(on c1 'hcablk host-id')"
tries=$(on target 'systemctl show -p NRestarts,ExecMainStartTimestampMonotonic hcablk-target-retry')
check "the failed export is tried again" wait_until target 150 "[ '$tries' != \"\$(systemctl show -p NRestarts,ExecMainStartTimestampMonotonic hcablk-target-retry)\" ]"
must on target 'truncate -s 16M /var/tmp/later.img'
check "the other volume is exported when its drive appears" wait_until target 150 "$exported | grep later"
check "the target retries nothing once all volumes are exported" wait_until target 60 '[ "$(systemctl show -p ActiveState --value hcablk-target-retry)" = inactive ]'
silent "systemd lists no failure once all volumes are exported" on target 'systemctl --failed --plain --no-legend'
silent "the retry does not allow a host that was forbidden meanwhile" on target 'ls /sys/kernel/config/hcablk_target/volumes/db/hosts'
must on target "sed -i 's/^device = /devcie = /' /etc/hcablk/hcablk.toml"
check "the target's service restarts with a mistake in its files" on target 'systemctl restart hcablk-target'
same "a restart with a mistake in the files ends no export" "db later mine" "$(on target "$exported | xargs")"
check "systemd lists the mistake in the files as a failure" wait_until target 60 'systemctl --failed --plain --no-legend | grep -q hcablk-target-retry.service'
must on target "sed -i 's/^devcie = /device = /' /etc/hcablk/hcablk.toml"
check "the target's service stops" on target 'systemctl stop hcablk-target'
same "stopping the service ends only the exports of the files" mine "$(on target "$exported | xargs")"
check "the target's service starts again" on target 'systemctl start hcablk-target && hcablk target unexport mine'
same "the started service exports the volumes of the files" "db later" "$(on target "$exported | xargs")"
check "the service that retries failed exports ends" wait_until target 60 '[ "$(systemctl show -p ActiveState --value hcablk-target-retry)" = inactive ]'
must on c1 "printf '[disk.db]\naddress = \"%s\"\n' $target_address > /etc/hcablk/hcablk.toml"
check "the client's service is enabled and starts" on c1 'systemctl enable --now hcablk@db'
must on c1 "mkfs.ext4 -q -U $uuid /dev/hcablk0 && mkdir -p /srv/db"
must on c1 "sed -n 's/^UUID=[^ ]* *\(.*ext4 .*\)/UUID=$uuid \1/p' /usr/share/doc/hcablk/examples/fstab >> /etc/fstab && systemctl daemon-reload"
like "the example line for fstab is added" "^UUID=$uuid  */srv/db  *ext4 .*x-systemd.requires=hcablk@db" "$(on c1 'tail -n 1 /etc/fstab')"
check "the file system in fstab is mounted" on c1 'mount /srv/db'
check "the client writes to it" writes c1 one

# Order of the shutdown: the file system is unmounted, then the disk is disconnected, then the network goes down.
shut_down c1
same "the file system was unmounted before the disk was disconnected" clean \
	"$(on target "dumpe2fs -h $machine_drive 2> /dev/null | sed -n 's/^Filesystem state: *//p'")"
silent "the client has ended its session at the target" on target 'cat /sys/kernel/config/hcablk_target/volumes/db/clients'
boot c1
started c1
check "the file system is mounted again after a reboot" mounted c1 /srv/db
same "the line written before the reboot is there" one "$(on c1 'cat /srv/db/lines')"

# The target shuts down while the client uses its volume.
shut_down target
spawn two c1 "echo two >> /srv/db/lines && sync -f /srv/db/lines"
check "the client's disk waits" wait_until c1 120 'hcablk list --json | grep -q queueing'
boot target
started target
check "the line written while the target was down arrives" join two
check "the disk is live" wait_until c1 60 "grep -q '^live' /sys/kernel/config/hcablk/db/state"

# All machines lose power, and the client is the first to start again.
must vm kill c1
must vm kill target
boot c1
check "the client waits for its target" wait_until c1 200 'systemctl show -p ActiveState hcablk@db | grep -q activating'
boot target
started target
check "the file system is mounted when the target has started" mounted c1 /srv/db
started c1
same "no synced line is lost" "one two" "$(on c1 'xargs < /srv/db/lines')"

# A newer package is installed while the disk is in use.
check "the package is upgraded while the disk is in use" on c1 'set -e; cd /tmp; mount -r LABEL=packages /mnt; dpkg-deb -R /mnt/hcablk_*.deb new; umount /mnt
	sed -i "s/^Version: .*/&+1/" new/DEBIAN/control; dpkg-deb -b new hcablk.deb; DEBIAN_FRONTEND=noninteractive apt-get install -y ./hcablk.deb'
check "the disk works after the upgrade" writes c1 three
like "the disk's service is still active after the upgrade" '^active$' "$(on c1 'systemctl is-active hcablk@db')"

# Removing the package stops the disk's service, which unmounts the file system and disconnects the disk.
check "the package is removed" on c1 'DEBIAN_FRONTEND=noninteractive apt-get remove -y hcablk'
refuse "removing the package unmounted the file system first" on c1 'findmnt /srv/db'
silent "removing the package disconnected the disk" on c1 'ls -d /sys/block/hcablk* /sys/kernel/config/hcablk/db 2> /dev/null || true'
check "a removed package keeps the link that enables the service" on c1 '[ -h /etc/systemd/system/hcablk.target.wants/hcablk@db.service ]'
must on c1 "sed -i '/hcablk@db/d' /etc/fstab && : > /etc/hcablk/fence_key"
check "the packages are purged" on c1 'DEBIAN_FRONTEND=noninteractive apt-get purge -y hcablk "hcablk-modules-*"'
same "purging keeps the files that the administrator made" fence_key "$(on c1 'ls /etc/hcablk; rm -r /etc/hcablk')"
silent "no file of the packages is left" on c1 "find / -xdev -iname '*hcablk*' ! -path '/tmp/*' ! -path '/var/lib/dpkg/*' ! -path '/var/log/*' ! -path '/var/cache/*' \
	! -path '/usr/local/sbin/hcablk-agent' ! -name hcablk-test-agent.service"
started c1
