#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: in a Pacemaker cluster set up as in the package's example, a node mounts the file system only after fence_hcablk has fenced the other node; the fenced node's writes fail, and it rejoins.
# takes: 900
# guests: mt m1 m2
# timeout: 4800

. "${0%/*}/../lib/lib.sh"
. "${0%/*}/../lib/machine.sh"

uuid=f9fe3ba6-7a5c-4d3a-9e3c-1f0f5a1c8f1b
example=/usr/share/doc/hcablk/examples/pacemaker

# cluster GUEST: starts corosync and Pacemaker on the guest.
cluster() {
	ON_SECONDS=300 on "$1" 'systemctl start corosync pacemaker'
}
# in_cluster GUEST: waits until the guest sees two online nodes.
in_cluster() {
	wait_until "$1" 400 "[ \$(crm_mon -1 --as-xml | grep -c '<node name.* online=\"true\"') = 2 ]"
}
# evicted: prints the hosts that the target has evicted.
evicted() {
	on target "cut -d' ' -f1 /sys/kernel/config/hcablk_target/volumes/db/evicted"
}

started target c1 c2
install_packages target c1 c2
exchange_keys c1 c2
host1=$(on c1 'hcablk host-id') host2=$(on c2 'hcablk host-id')
must on target "cat > /etc/hcablk/hcablk.toml << END
[export.db]
device = \"$machine_drive\"
allow = [\"$host1\", \"$host2\"]

[port.1]
address = \"$target_address\"
END
mkfs.ext4 -q -U $uuid $machine_drive && systemctl start hcablk-target ssh && mkdir -p -m 700 /root/.ssh"
key=$(on c1 'ssh-keygen -q -t ed25519 -N "" -f /etc/hcablk/fence_key && cat /etc/hcablk/fence_key')
must on target "echo '$(on c1 'cat /etc/hcablk/fence_key.pub')' > /root/.ssh/authorized_keys"
must on c2 "umask 077; echo '$key' > /etc/hcablk/fence_key"
for guest in c1 c2; do
	must on "$guest" "mkdir -p /srv/db && ssh-keyscan -t ed25519 $target_address > /etc/ssh/ssh_known_hosts"
	must on "$guest" "cat > /etc/corosync/corosync.conf << 'END'
totem {
	version: 2
	cluster_name: c
	transport: knet
	crypto_cipher: none
	crypto_hash: none
	token: 20000
}
nodelist {
	node {
		ring0_addr: 10.77.0.32
		name: m1
		nodeid: 1
	}
	node {
		ring0_addr: 10.77.0.33
		name: m2
		nodeid: 2
	}
}
quorum {
	provider: corosync_votequorum
	two_node: 1
}
logging {
	to_syslog: yes
}
END"
done
spawn second c2 'systemctl start corosync pacemaker'
check "the first node's cluster starts" cluster c1
check "the second node's cluster starts" join second
check "the nodes see each other" in_cluster c1
ON_SECONDS=300 must on c1 "sed 's/10\\.0\\.0\\.1\\b/$target_address/; s/node1:[0-9a-f-]*/m1:$host1/; s/node2:[0-9a-f-]*/m2:$host2/' $example > /tmp/example && sh -ex /tmp/example"
check "the example's resources run" wait_until c1 400 'crm_resource --resource srv --locate | grep -q "running on: m"'
victim=c1 other=c2 host=$host1
if on c1 'crm_resource --resource srv --locate' | grep -q 'm2 *$'; then
	victim=c2 other=c1 host=$host2
fi
# Pacemaker reports a resource as running before its start has ended.
check "the active node mounts the file system" mounted $victim /srv/db
refuse "the other node does not mount the file system" on $other 'findmnt -n /srv/db'
must on $victim 'echo one > /srv/db/one && sync -f /srv/db/one'

# The active node's corosync hangs, and the rest of the node keeps running. The target cannot be asked to fence it until its ssh
# runs again.
must on target 'systemctl stop ssh ssh.socket; true'
# shellcheck disable=SC2016 # expanded by the guest
must on $victim 'kill -STOP $(pidof corosync)'
check "the other node tries to fence the hung node, and cannot" wait_until $other 300 'journalctl -b --no-pager | grep -q "fence_hcablk.*failed"'
refuse "the other node does not mount without the fence" on $other 'findmnt -n /srv/db'
check "the hung node still writes" on $victim 'echo two > /srv/db/two && sync -f /srv/db/two'
# Writes through a descriptor that was opened before, until a write fails.
ON_SECONDS=600 spawn writer $victim 'exec 3> /srv/db/load; while dd if=/dev/zero bs=4k count=1 oflag=direct status=none >&3; do usleep 100000; done'
must on target 'systemctl start ssh'
check "the hung node is fenced, and the other node mounts the file system" mounted $other /srv/db
same "the target has evicted the hung node" "$host" "$(evicted)"
same "the other node reads all that was written before the fence" "one two" "$(on $other 'cd /srv/db && cat one two | xargs')"
check "a write of the fenced node has failed" join writer
like "the write failed because the target evicted the node" 'evicted this host' "$(in_log $victim 'hcablk: db: .*evicted')"
refuse "the fenced node cannot write to its disk" on $victim '[ -b /dev/hcablk0 ] && dd if=/dev/zero of=/dev/hcablk0 bs=4k count=1 oflag=direct conv=notrunc,nocreat status=none'
refuse "the fenced node cannot write to its file system" on $victim 'echo three > /srv/db/three && sync -f /srv/db/three'
must on $other 'echo four > /srv/db/four && sync -f /srv/db/four'

must vm kill $victim
boot $victim
started $victim
check "the fenced node reboots, and its cluster starts" cluster $victim
check "the fenced node rejoins the cluster" in_cluster $other
check "the target admits the fenced node again" wait_until target 200 '[ -z "$(cat /sys/kernel/config/hcablk_target/volumes/db/evicted)" ]'

# The node that now has the file system loses power.
must vm kill $other
check "the node without power is fenced, and its peer mounts the file system" mounted $victim /srv/db
same "its peer reads all that was written" "one two four" "$(on $victim 'cd /srv/db && cat one two four | xargs')"
refuse "its peer reads nothing that the fenced node wrote after the fence" on $victim '[ -e /srv/db/three ]'
refuse "the target has evicted the node without power" on target '[ -z "$(cat /sys/kernel/config/hcablk_target/volumes/db/evicted)" ]'
boot $other
started $other
check "the node has power again, and its cluster starts" cluster $other
check "the node that lost power rejoins the cluster" in_cluster $victim
check "the target admits the node that lost power" wait_until target 200 '[ -z "$(cat /sys/kernel/config/hcablk_target/volumes/db/evicted)" ]'
