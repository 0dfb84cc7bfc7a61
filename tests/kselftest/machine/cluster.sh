#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: OCFS2 on two Debian machines, started by o2cb.service and /etc/fstab, is mounted again after each machine reboots in turn and after all reboot at once.
# takes: 900
# guests: mt m1 m2
# timeout: 4800

. "${0%/*}/../lib/lib.sh"
. "${0%/*}/../lib/machine.sh"

uuid=f9fe3ba6-7a5c-4d3a-9e3c-1f0f5a1c8f1b
clients='c1 c2'

started target c1 c2
install_packages target c1 c2
exchange_keys c1 c2
reach_target c1 c2
must on target "cat > /etc/hcablk/hcablk.toml << END
[export.data]
device = \"$machine_drive\"
allow = [\"$(on c1 'hcablk host-id')\", \"$(on c2 'hcablk host-id')\"]

[port.1]
address = \"$target_address\"
END
systemctl start hcablk-target"
for guest in $clients; do
	must on "$guest" "printf '[disk.data]\naddress = \"%s\"\n' $target_address > /etc/hcablk/hcablk.toml
		sed -i 's/^O2CB_ENABLED=.*/O2CB_ENABLED=true/; s/^O2CB_BOOTCLUSTER=.*/O2CB_BOOTCLUSTER=c/' /etc/default/o2cb
		grep -q O2CB_ENABLED=true /etc/default/o2cb || printf 'O2CB_ENABLED=true\nO2CB_BOOTCLUSTER=c\n' >> /etc/default/o2cb
		mkdir -p /etc/ocfs2 /srv/shared
		printf 'cluster:\n\theartbeat_mode = local\n\tnode_count = 2\n\tname = c\n\n' > /etc/ocfs2/cluster.conf
		printf 'node:\n\tnumber = 0\n\tcluster = c\n\tip_port = 7777\n\tip_address = 10.77.0.32\n\tname = m1\n\n' >> /etc/ocfs2/cluster.conf
		printf 'node:\n\tnumber = 1\n\tcluster = c\n\tip_port = 7777\n\tip_address = 10.77.0.33\n\tname = m2\n' >> /etc/ocfs2/cluster.conf"
	check "$guest: o2cb starts" on "$guest" 'systemctl enable o2cb; systemctl restart o2cb'
	check "$guest: the disk's service is enabled and starts" on "$guest" 'systemctl enable --now hcablk@data'
done
must on c1 "mkfs.ocfs2 -q -N 2 -b 4096 -C 4096 -U $uuid --cluster-stack=o2cb --cluster-name=c /dev/hcablk0"
for guest in $clients; do
	must on "$guest" "sed -n 's/^UUID=[^ ]* *\(.*ocfs2 .*\)/UUID=$uuid \1/p' /usr/share/doc/hcablk/examples/fstab >> /etc/fstab && systemctl daemon-reload"
	like "$guest: the example line for fstab is added" "^UUID=$uuid  */srv/shared  *ocfs2 " "$(on "$guest" 'tail -n 1 /etc/fstab')"
	check "$guest: the file system in fstab is mounted" on "$guest" 'udevadm trigger --settle && mount /srv/shared'
done
check "one client writes a file" on c1 'echo one > /srv/shared/one && sync -f /srv/shared/one'
same "the other client reads the same" one "$(on c2 'cat /srv/shared/one')"

for guest in $clients; do
	shut_down "$guest"
	boot "$guest"
	check "$guest: the file system is mounted again after a reboot" mounted "$guest" /srv/shared
	started "$guest"
done
same "both clients read the file written before the reboots" "one one" "$(on c1 'cat /srv/shared/one') $(on c2 'cat /srv/shared/one')"

shut_down c1 c2 target
boot target c1 c2
reach_target c1 c2
for guest in $clients; do
	check "$guest: the file system is mounted after all machines were off" mounted "$guest" /srv/shared
done
started target c1 c2
check "one client writes a file after all machines were off" on c2 'echo two > /srv/shared/two && sync -f /srv/shared/two'
same "the other client reads the same after all machines were off" two "$(on c1 'cat /srv/shared/two')"
shut_down c1 c2
