#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: the target's HCA can be unbound from its driver and bound again while one volume's drive hangs, even if that volume's export is ending; the other volume reconnects, the drive writes the right data, and nothing stays mapped.
# turn: 4
# takes: 200
# guests: hca-iommu hca-bounce
# timeout: 900

. "${0%/*}/../lib/lib.sh"
. "${0%/*}/../lib/hca.sh"

# unbound "DESCRIPTION": unbinds the target's HCA while one volume's drive hangs and, if $ending is set, while the export of that volume ends.
unbound() {
	local hung card
	hca_pair
	must on target "modprobe dm_mod && echo '0 65536 linear $drive2 0' | dmsetup create gate && dmsetup mknodes &&
		echo '0 65536 linear /dev/mapper/gate 0' | dmsetup create door && dmsetup mknodes &&
		dd if=/dev/urandom of=/tmp/pattern bs=4k count=1 status=none"
	export_volume hung /dev/mapper/door c1
	export_volume vol1 "$drive" c1
	connect c1 hung --queues 1 --io-timeout 600
	hung=$device
	connect c1 vol1 --ctrl-loss-tmo 600
	must on target 'dmsetup suspend --nolockfs gate'
	# One request of each data path: an eager or inline write, a write whose data the target reads, and a read.
	spawn small c1 "dd if=/tmp/pattern of=$hung bs=4k count=1 oflag=direct conv=notrunc status=none"
	must drive_holds write
	spawn reading c1 "dd if=$hung of=/dev/null bs=64k count=1 skip=256 iflag=direct status=none"
	must drive_holds read
	# The queue pair's own buffers are as many as one request needs, and the read has some of them. The write comes last: with
	# bounce buffers it is several requests, and those that wait for memory delay later ones.
	spawn fetched c1 "dd if=/dev/zero of=$hung bs=1M count=1 seek=4 oflag=direct conv=notrunc status=none"
	must wait_until target 60 "cat /sys/block/dm-*/inflight | awk '\$2 > 1 { n = 1 } END { exit !n }'"
	less "$1: the large write has borrowed shared buffers" 0 "$(on target "awk '\$1 == \"size_class\" { n += \$4 } END { print n }' $target/ports/1/memory")"
	if [ -n "$ending" ]; then
		ON_SECONDS=600 spawn ending target 'hcablk target unexport --force hung'
		must wait_log target 30 'hung: session .* ended: the volume is disabled'
	fi

	# The drive has 30 s to finish the requests. If the export ends, the target looks every 30 s whether the client may still ask.
	card=$(on target 'readlink -f /sys/class/net/hcaport1/device')
	ON_SECONDS=$((150 * slow)) check "$1: the HCA is unbound while a drive hangs" on target \
		"echo ${card##*/} > /sys/bus/pci/drivers/hcablk_hca/unbind"
	check "$1: the drive has not finished" drive_holds write
	must on target "echo ${card##*/} > /sys/bus/pci/drivers/hcablk_hca/bind"
	hca_again 1
	check "$1: the other volume is connected again" wait_until c1 120 "[ \$(cat $initiator/vol1/state) = live ]"
	check "$1: the other volume works after it has reconnected" on c1 "hcablk-scatter $device random 5 8"
	check "$1: the drive still hangs" drive_holds write
	must on c1 'hcablk disconnect --force --if-exists hung'
	refuse "$1: the small write has failed" join small
	refuse "$1: the large write has failed" join fetched
	refuse "$1: the read has failed" join reading

	must on target 'dmsetup resume gate'
	if [ -n "$ending" ]; then
		check "$1: when the drive continues, the export ends" join ending
	else
		check "$1: when the drive continues, the session ends" wait_until target 60 "[ -z \"\$(cat $target/volumes/hung/clients)\" ]"
	fi
	check "$1: the drive has written the data of the first write" on target \
		'dd if=/dev/mapper/door bs=4k count=1 iflag=direct status=none | cmp - /tmp/pattern'
	if [ -z "$ending" ]; then
		connect c1 hung
		check "$1: the volume of the drive that hung works again" on c1 "hcablk-scatter $device random 6 8 && hcablk disconnect hung"
		must on target 'hcablk target unexport hung'
	fi
	must on target 'dmsetup remove door && dmsetup remove gate'
	hca_end
}

hca_in hca-iommu
ending='' unbound "an IOMMU"
hca_in hca-bounce
_host_ids=()
ending=yes unbound "bounce buffers, and the export ends"
