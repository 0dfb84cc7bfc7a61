#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: the guests reach each other, and RDMA works between them.
# turn: 17
# takes: 15
# expect-log: possible circular locking dependency|Call Trace:
# (nvmet takes the locks of its configuration and its listener in both orders; no module of ours is loaded here.)

. "${0%/*}/../lib/lib.sh"

for guest in c1 c2; do
	check "$guest reaches the target over IPv4" on $guest "ping -c 1 -w 5 $target_address"
	check "$guest reaches the target over IPv6" on $guest "ping -c 1 -w 5 $target_address6"
	check "$guest's RDMA link is active" on $guest "rdma link show $rdma_link/1 | grep 'state ACTIVE'"
	same "$guest's link has an MTU of 9000" 9000 "$(on $guest 'cat /sys/class/net/e*/mtu')"
done
check "the target's RDMA link is active" on target "rdma link show $rdma_link/1 | grep 'state ACTIVE'"
check "the clients reach each other" on c1 'ping -c 1 -w 5 10.77.0.3'

# More than QEMU and the machine's own kernel buffer for a guest that reads nothing.
must vm pause c1
on target 'for n in $(seq 100); do ping -c 1 -W 1 -s 8900 10.77.0.2 & done > /dev/null 2>&1; wait' || true
ON_SECONDS=30 check "a paused guest does not stop the others" on target true
ON_SECONDS=30 check "a paused guest does not cut the others off" on c2 "ping -c 1 -w 5 $target_address"
must vm resume c1
check "the resumed guest is reached again" wait_until target 60 'ping -c 1 -W 1 10.77.0.2'

# The stock NVMe over RDMA drivers prove that packets pass.
nvmet=/sys/kernel/config/nvmet
must on target "
	modprobe nvmet_rdma || exit
	mkdir $nvmet/subsystems/test $nvmet/subsystems/test/namespaces/1 $nvmet/ports/1 &&
	echo 1 > $nvmet/subsystems/test/attr_allow_any_host &&
	echo $drive2 > $nvmet/subsystems/test/namespaces/1/device_path &&
	echo 1 > $nvmet/subsystems/test/namespaces/1/enable &&
	cd $nvmet/ports/1 && echo rdma > addr_trtype && echo ipv4 > addr_adrfam &&
	echo 0.0.0.0 > addr_traddr && echo 4420 > addr_trsvcid &&
	ln -s $nvmet/subsystems/test subsystems/test"
for guest in c1 c2; do
	must on $guest "modprobe nvme_rdma &&
		echo transport=rdma,traddr=$target_address,trsvcid=4420,nqn=test > /dev/nvme-fabrics"
	must wait_until $guest 60 'ls /dev/nvme*n1'
done
check "c1 writes data over NVMe" on c1 'dd if=/dev/urandom of=/tmp/data bs=1M count=4 &&
	dd if=/tmp/data of=$(ls /dev/nvme*n1) bs=1M oflag=direct'
same "c2 reads the data of c1 over NVMe" "$(on c1 'sha256sum < /tmp/data')" \
	"$(on c2 'dd if=$(ls /dev/nvme*n1) bs=1M count=4 iflag=direct | sha256sum')"
for guest in c1 c2; do
	must on $guest 'echo 1 | tee /sys/class/nvme/nvme*/delete_controller; rmmod nvme_rdma nvme_fabrics; rm -f /tmp/data'
done
must on target "rm $nvmet/ports/1/subsystems/test && rmdir $nvmet/ports/1 &&
	echo 0 > $nvmet/subsystems/test/namespaces/1/enable &&
	rmdir $nvmet/subsystems/test/namespaces/1 $nvmet/subsystems/test && rmmod nvmet_rdma nvmet"
