# shellcheck shell=bash disable=SC2034,SC2154 # names are for the tests, and from lib.sh
# SPDX-License-Identifier: GPL-2.0
#
# Functions of the tests that use the tests' own RDMA devices (tests/hca): target and initiator are in one guest, each with a
# device of its own, hca1 and hca0. `on target` and `on c1` are both that guest then.

# hca_in GUEST: makes the guest both target and initiator.
hca_in() {
	hca_guest=$1
	_place=([target]=$1 [c1]=$1)
	_link=([target]=hca1 [c1]=hca0)
}
hca_in hca

# hca_pair: makes the two devices, or replaces them, with the module's $hca_parameters, as guest/hca-pair documents.
hca_parameters=
hca_pair() {
	target_address=10.78.0.2
	must on "$hca_guest" "hcablk-hca-pair $hca_parameters"
}

# hca_again NUMBER: makes one device of the pair again after its card was unbound from its driver and bound again.
hca_again() {
	local port=hcaport$1 peer=$((1 - $1))
	must on "$hca_guest" "cd /sys/class/net && ip link set $port up && ip address add 10.78.0.$(($1 + 1))/24 dev $port noprefixroute &&
		ip route add 10.78.0.$((peer + 1)) dev $port src 10.78.0.$(($1 + 1)) &&
		ip neighbour replace 10.78.0.$((peer + 1)) lladdr \$(cat hcaport$peer/address) dev $port nud permanent &&
		ip neighbour replace 10.78.0.$(($1 + 1)) lladdr \$(cat $port/address) dev hcaport$peer nud permanent &&
		ip route del local 10.78.0.$(($1 + 1)) dev $port table local &&
		rdma link add hca$1 type hca netdev $port"
	must wait_until "$hca_guest" 60 "rdma link show hca$1/1 | grep 'state ACTIVE'"
}

# knob DEVICE NAME [VALUE]: sets or prints one of a device's settings.
knob() {
	if [ $# = 3 ]; then
		must on "$hca_guest" "echo $3 > /sys/kernel/debug/hcablk_hca/$1/$2"
	else
		on "$hca_guest" "cat /sys/kernel/debug/hcablk_hca/$1/$2"
	fi
}

# counted DEVICE NAME: prints a counter of the device.
counted() {
	knob "$1" "counters/$2"
}

# hca_verify: connects a disk over the pair of devices, and checks that requests of all shapes read what they wrote, and that the
# devices did no more than necessary.
hca_verify() {
	local seed=$RANDOM case dev
	like "both links are active" "hca0/1 state ACTIVE.*hca1/1 state ACTIVE" "$(on c1 'rdma link show' | tr '\n' ' ')"
	share c1
	like "the target sees the client's address" "10.78.0.1" "$(on target "rdma resource show cm_id" | tr '\n' ' ')"
	check "a new ext4 file system has no error" on c1 "mkfs.ext4 -q $device && e2fsck -fn $device"
	echo "# seed $seed"
	for case in sizes pages edges gaps bytes random; do
		check "$case: hcablk-scatter reads what it wrote" on c1 "hcablk-scatter $device $case $((seed + 1)) 24"
	done
	check "fio verifies many requests of all sizes" fio c1 "--name=v --filename=$device --rw=randrw --bsrange=512-1M \
		--blockalign=512 --iodepth=32 --numjobs=2 --size=$(few 8)M --offset_increment=100M --verify=crc32c --verify_fatal=1"
	same "the drive holds what the client reads" "$(on target "dd if=$drive bs=1M count=24 iflag=direct | sha256sum")" \
		"$(on c1 "dd if=$device bs=1M count=24 iflag=direct | sha256sum")"
	same "the client has no protocol errors" 0 "$(stat_of c1 "$initiator/vol1" protocol_errors)"
	same "the target has no protocol errors" 0 "$(stat_of target "$target/volumes/vol1" protocol_errors)"
	for dev in hca0 hca1; do
		same "$dev: nothing was refused, lost or sent again" "0 0 0 0" \
			"$(counted $dev naks) $(counted $dev dma_faults) $(counted $dev resent) $(counted $dev flushed)"
		less "$dev: the data moved by DMA" $((24 << 20)) "$(counted $dev dma_bytes)"
	done
}

# hca_end: removes what hca_verify has made. The kernel reports memory that is still mapped when the devices are removed.
hca_end() {
	disconnect c1 vol1
	must on target 'hcablk target unexport vol1 && hcablk target unlisten --all && modprobe -r hcablk hcablk_target'
	check "the module of the devices can be removed" on c1 "rmmod hcablk_hca"
}
