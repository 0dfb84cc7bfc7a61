#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: after a power failure a client lets users in at once and mounts the disk of a target that boots ten minutes later; a client with dirty data shuts down within the documented time though its target was killed.
# takes: 1500
# guests: mt m1
# timeout: 4800

. "${0%/*}/../lib/lib.sh"
. "${0%/*}/../lib/machine.sh"

uuid=0a3407de-014b-458b-b5c1-848e92a327a3
# The target boots when the client's clock shows this many seconds since its own boot.
late=600

started target c1
install_packages target c1
exchange_keys c1
reach_target c1
must on target "cat > /etc/hcablk/hcablk.toml << END
[export.db]
device = \"$machine_drive\"
allow = [\"$(on c1 'hcablk host-id')\"]

[port.1]
address = \"$target_address\"
END
systemctl enable --now hcablk.target hcablk-target"
must on c1 "printf '[disk.db]\naddress = \"%s\"\n' $target_address > /etc/hcablk/hcablk.toml"
check "the client's service is enabled and connects the disk" on c1 'systemctl enable --now hcablk.target hcablk@db'
must on c1 "mkfs.ext4 -q -U $uuid /dev/hcablk0 && mkdir -p /srv/db"
must on c1 "sed -n 's/^UUID=[^ ]* *\(.*ext4 .*\)/UUID=$uuid \1/p' /usr/share/doc/hcablk/examples/fstab >> /etc/fstab && systemctl daemon-reload"
check "the client's service restarts" on c1 'systemctl restart hcablk@db'
check "the service mounts the file system of the example in /etc/fstab" mounted c1 /srv/db
must on c1 'echo one > /srv/db/lines && sync -f /srv/db/lines'

# All machines lose power, and the client boots first.
must vm kill c1
must vm kill target
boot c1
check "the client lets users log in while its target is off" wait_until c1 200 'systemctl is-active systemd-user-sessions && systemctl is-active remote-fs.target'
refuse "the client has no disk while its target is off" on c1 'ls /dev | grep hcablk'
ON_SECONDS=$((2 * late)) check "the client waits ten minutes for its target" on c1 "while up=\$(cut -d. -f1 /proc/uptime) && [ \$up -lt $late ]; do sleep 5; done"
boot target
started target
check "the file system is mounted when the target has started" mounted c1 /srv/db
started c1
same "no synced line is lost" one "$(on c1 'cat /srv/db/lines')"

# The target is killed while the client has dirty data; then the client shuts down.
must on c1 'dd if=/dev/zero of=/srv/db/dirty bs=1M count=16 status=none'
must vm kill target
begin=$(now_ms)
must on c1 'systemctl poweroff --no-block'
check "the client shuts down while its target is off" vm off c1 900
# The documented 60 seconds, one attempt to connect, and the rest of a shutdown: much less than the ten minutes of ctrl_loss_tmo.
within "the shutdown without the target ends within the documented time" $(($(now_ms) - begin)) $((240000 * slow))
boot target
started target
