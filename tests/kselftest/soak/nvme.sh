#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: the harness of test failover/ghost-writes detects ghost writes: nvme-rdma with two paths reissues writes over another path while the drive still holds them. Prints whether readers see a write of the past.
# takes: 120
# waits: yes
# skips: siw debug
# timeout: 7200

. "${0%/*}/../lib/lib.sh"
. "${0%/*}/../lib/multi.sh"

[ "$rdma" = rxe ] || skip "the test needs soft-RoCE's timeouts"

# The largest number of cuts: the test ends when a reader has found a write of the past. More: make soak-nvme N=…
wanted=${HCABLK_REISSUES:-10}
# As in failover/ghost-writes.
hold=6000

on target 'modprobe -q -n nbd' || skip "this kernel has no nbd"
two_cards 1 target c1
must on target 'modprobe nbd nbds_max=1'
ON_SECONDS=7000 spawn drive target "exec hcablk-reorder /dev/nbd0 16 ${HCABLK_SEED:-1} $hold"
must wait_until target 30 '[ "$(cat /sys/block/nbd0/size)" = 32768 ]'
must on target 'modprobe nvmet_rdma && cd /sys/kernel/config/nvmet && mkdir subsystems/ghosts subsystems/ghosts/namespaces/1 &&
	echo 1 > subsystems/ghosts/attr_allow_any_host && echo /dev/nbd0 > subsystems/ghosts/namespaces/1/device_path &&
	echo 1 > subsystems/ghosts/namespaces/1/enable || exit
	for n in 1 2; do
		mkdir ports/$n && echo rdma > ports/$n/addr_trtype && echo ipv4 > ports/$n/addr_adrfam &&
		echo 10.77.$n.1 > ports/$n/addr_traddr && echo 4420 > ports/$n/addr_trsvcid &&
		ln -s /sys/kernel/config/nvmet/subsystems/ghosts ports/$n/subsystems/ || exit
	done'
must on c1 'modprobe nvme_rdma && for n in 1 2; do
		echo transport=rdma,traddr=10.77.$n.1,trsvcid=4420,nqn=ghosts,nr_io_queues=1,keep_alive_tmo=1,reconnect_delay=1,ctrl_loss_tmo=-1 \
			> /dev/nvme-fabrics || exit
	done'
must wait_until c1 30 '[ -b /dev/nvme0n1 ] && [ "$(cat /sys/class/nvme-subsystem/nvme-subsys0/nvme*/state | sort -u)" = live ]'
same "the disk of nvme-rdma has two paths" 2 "$(on c1 'ls -d /sys/class/nvme-subsystem/nvme-subsys0/nvme?/ | wc -l')"
must on c1 'echo round-robin > /sys/class/nvme-subsystem/nvme-subsys0/iopolicy'
ON_SECONDS=7000 spawn writers c1 "exec hcablk-versions write /dev/nvme0n1 32 > /tmp/versions"

# controller N IS: waits until the state of the controller on path N is (=), or is not (!=), `live`
controller() {
	wait_until c1 60 "cd /sys/class/nvme-subsystem/nvme-subsys0 && [ \$(cat \$(grep -l traddr=10.77.$1.1, nvme?/address | sed s/address/state/)) $2 live ]"
}
cuts=0
while [ $cuts -lt "$wanted" ] && kill -0 "${_jobs[writers]}" 2> /dev/null; do
	before=$(on c1 "awk '{ print \$5 }' /sys/block/nvme0n1/stat")
	wait_until c1 20 "awk '{ exit !(\$5 > $before + 16) }' /sys/block/nvme0n1/stat" || break
	card=$((1 + RANDOM % 2))
	cuts=$((cuts + 1))
	cut path$card
	controller $card != || break
	mend path$card
	controller $card = || break
done
less "paths were cut" 0 $cuts
must on c1 'touch /tmp/stop'
# In a write of the past the drive carries out an old write last; readers see it if no newer one follows.
if join writers; then seen="no reader found data older than acknowledged"; else seen="a reader found data older than acknowledged"; fi
echo "# after $cuts cuts: $seen"
must on c1 'rm -f /tmp/versions /tmp/stop; for one in /sys/class/nvme-subsystem/nvme-subsys0/nvme?; do echo 1 > $one/delete_controller; done
	modprobe -r nvme_rdma'
must on target 'cd /sys/kernel/config/nvmet && rm ports/1/subsystems/ghosts ports/2/subsystems/ghosts && rmdir ports/1 ports/2 \
	subsystems/ghosts/namespaces/1 subsystems/ghosts && modprobe -r nvmet_rdma'
must on target 'killall hcablk-reorder'
refuse "nvme-rdma: the drive gets a write while it still holds an earlier one of the same place" join drive
must wait_until target 30 'rmmod nbd'
