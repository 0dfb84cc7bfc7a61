#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: on Debian machines with nothing but the packages a file system of /etc/fstab is mounted at each start, and outlives reboots, power losses and upgrades.
# takes: 600
# guests: mt m1
# timeout: 3600

. "${0%/*}/../lib/lib.sh"
. "${0%/*}/../lib/machine.sh"

uuid=0a3407de-014b-458b-b5c1-848e92a327a3

# writes GUEST TEXT: a line more is in the file, on the drive.
writes() {
	on "$1" "echo '$2' >> /srv/db/lines && sync -f /srv/db/lines"
}

# The volumes that are enabled.
exported='cd /sys/kernel/config/hcablk_target/volumes && grep -l 1 */enable | cut -d/ -f1'

started target c1
install_packages target c1
refuse "the target exports nothing by itself" on target 'systemctl is-active hcablk-target'

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
same "the volume is exported, though another one has no drive yet" db "$(on target "$exported")"
check "that is told" on target 'journalctl -u hcablk-target | grep -q "pending: enable export later: .*/var/tmp/later.img"'
check "systemd shows the failure" wait_until target 60 'systemctl --failed --plain --no-legend | grep -q hcablk-target-retry.service'
# The service that tries the missing export again does not undo changes that the administrator makes by hand.
must on target "hcablk target export mine $machine_drive --read-only --no-port && hcablk target forbid db $(on c1 'hcablk host-id')"
tries=$(on target 'systemctl show -p NRestarts,ExecMainStartTimestampMonotonic hcablk-target-retry')
check "it is tried again" wait_until target 150 "[ '$tries' != \"\$(systemctl show -p NRestarts,ExecMainStartTimestampMonotonic hcablk-target-retry)\" ]"
must on target 'truncate -s 16M /var/tmp/later.img'
check "the other one is exported when it has one" wait_until target 150 "$exported | grep later"
check "and nothing is tried again" wait_until target 60 '[ "$(systemctl show -p ActiveState --value hcablk-target-retry)" = inactive ]'
silent "no failure is left" on target 'systemctl --failed --plain --no-legend'
silent "a host that was forbidden meanwhile is not allowed again" on target 'ls /sys/kernel/config/hcablk_target/volumes/db/hosts'
must on target "sed -i 's/^device = /devcie = /' /etc/hcablk/hcablk.toml"
check "a restart with a mistake in the files is no end of what is exported" on target 'systemctl restart hcablk-target'
same "all is exported still" "db later mine" "$(on target "$exported | xargs")"
check "and the mistake is shown" wait_until target 60 'systemctl --failed --plain --no-legend | grep -q hcablk-target-retry.service'
must on target "sed -i 's/^devcie = /device = /' /etc/hcablk/hcablk.toml"
check "the service is stopped" on target 'systemctl stop hcablk-target'
same "what others made stays" mine "$(on target "$exported | xargs")"
check "it is started again" on target 'systemctl start hcablk-target && hcablk target unexport mine'
same "its exports are there" "db later" "$(on target "$exported | xargs")"
check "and nothing is missing" wait_until target 60 '[ "$(systemctl show -p ActiveState --value hcablk-target-retry)" = inactive ]'
must on c1 "printf '[disk.db]\naddress = \"%s\"\n' $target_address > /etc/hcablk/hcablk.toml"
check "the client's service is enabled, and starts" on c1 'systemctl enable --now hcablk@db'
must on c1 "mkfs.ext4 -q -U $uuid /dev/hcablk0 && mkdir -p /srv/db"
must on c1 "sed -n 's/^UUID=[^ ]* *\(.*ext4 .*\)/UUID=$uuid \1/p' /usr/share/doc/hcablk/examples/fstab >> /etc/fstab && systemctl daemon-reload"
like "the example for fstab was taken" "^UUID=$uuid  */srv/db  *ext4 .*x-systemd.requires=hcablk@db" "$(on c1 'tail -n 1 /etc/fstab')"
check "what fstab says is mounted" on c1 'mount /srv/db'
check "and written to" writes c1 one

# In order: what is mounted goes before the disk, and the disk before the network.
shut_down c1
same "the file system was unmounted before the disk went" clean \
	"$(on target "dumpe2fs -h $machine_drive 2> /dev/null | sed -n 's/^Filesystem state: *//p'")"
silent "the client took its leave" on target 'cat /sys/kernel/config/hcablk_target/volumes/db/clients'
boot c1
started c1
check "it is mounted again" mounted c1 /srv/db
same "and what was written is there" one "$(on c1 'cat /srv/db/lines')"

# The target shuts down under it.
shut_down target
spawn two c1 "echo two >> /srv/db/lines && sync -f /srv/db/lines"
check "the client's disk waits" wait_until c1 120 'hcablk list --json | grep -q queueing'
boot target
started target
check "what was written meanwhile arrives" join two
check "the disk is live" wait_until c1 60 "grep -q '^live' /sys/kernel/config/hcablk/db/state"

# The power goes, for all of them, and the client is first to come back.
must vm kill c1
must vm kill target
boot c1
check "the client waits for its target" wait_until c1 200 'systemctl show -p ActiveState hcablk@db | grep -q activating'
boot target
started target
check "it is mounted when the target is there" mounted c1 /srv/db
started c1
same "nothing that was synced is lost" "one two" "$(on c1 'xargs < /srv/db/lines')"

# A newer package, under a disk that is in use.
check "an upgrade is carried out in use" on c1 'set -e; cd /tmp; mount -r LABEL=packages /mnt; dpkg-deb -R /mnt/hcablk_*.deb new; umount /mnt
	sed -i "s/^Version: .*/&+1/" new/DEBIAN/control; dpkg-deb -b new hcablk.deb; DEBIAN_FRONTEND=noninteractive apt-get install -y ./hcablk.deb'
check "the disk goes on" writes c1 three
like "its service is as it was" '^active$' "$(on c1 'systemctl is-active hcablk@db')"

# Removing the package stops the disk's service, which unmounts first, and stops what the service had connected.
check "the package is removed" on c1 'DEBIAN_FRONTEND=noninteractive apt-get remove -y hcablk'
refuse "its file system was unmounted" on c1 'findmnt /srv/db'
silent "its disk is disconnected" on c1 'ls -d /sys/block/hcablk* /sys/kernel/config/hcablk/db 2> /dev/null || true'
check "the link that enables the service is kept" on c1 '[ -h /etc/systemd/system/hcablk.target.wants/hcablk@db.service ]'
must on c1 "sed -i '/hcablk@db/d' /etc/fstab && : > /etc/hcablk/fence_key"
check "it is purged" on c1 'DEBIAN_FRONTEND=noninteractive apt-get purge -y hcablk "hcablk-modules-*"'
same "what an administrator has put there stays" fence_key "$(on c1 'ls /etc/hcablk; rm -r /etc/hcablk')"
silent "and nothing else is left of it" on c1 "find / -xdev -iname '*hcablk*' ! -path '/tmp/*' ! -path '/var/lib/dpkg/*' ! -path '/var/log/*' ! -path '/var/cache/*' \
	! -path '/usr/local/sbin/hcablk-agent' ! -name hcablk-test-agent.service"
started c1
