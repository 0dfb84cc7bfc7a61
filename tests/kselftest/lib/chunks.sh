# shellcheck shell=bash disable=SC2034 # names are for the tests
# SPDX-License-Identifier: GPL-2.0
#
# Functions of the tests of large requests that move in chunks: slow drives.

# make_drive NAME NANOSECONDS KIB [SETTING=VALUE…]: makes /dev/NAME on the target, which does one command at a time, each of up to
# KIB KiB in this time.
make_drive() {
	local name=$1 time=$2 kib=$3 script
	shift 3
	script="modprobe null_blk nr_devices=0; mkdir /sys/kernel/config/nullb/$name && cd /sys/kernel/config/nullb/$name &&
		echo 64 > size && echo 1 > submit_queues && echo 1 > hw_queue_depth && echo $((kib * 2)) > max_sectors"
	[ "$time" = 0 ] || script+=" && echo 2 > irqmode && echo $time > completion_nsec"
	for setting; do
		script+=" && echo ${setting#*=} > ${setting%%=*}"
	done
	must on target "$script && echo 1 > power && [ -b /dev/$name ]"
}

# stripe NAME DRIVE…: makes /dev/mapper/NAME on the target, in stripes of 64 KiB over these drives; sets $striped to its path.
stripe() {
	local name=$1 table member
	shift
	table="0 $((64 * 2048 * $#)) striped $# 128"
	for member; do
		table+=" /dev/$member 0"
	done
	must on target "modprobe dm_mod && echo '$table' | dmsetup create $name"
	striped=/dev/$(on target "dmsetup info -c --noheadings -o blkdevname $name")
}

# raid NAME KIB DRIVE…: makes /dev/NAME on the target, an md RAID 0 of these drives in stripes of KIB KiB; sets $striped to its
# path. It has no superblock, so that it needs no mdadm: the sysfs of md is enough.
raid() {
	local name=$1 kib=$2 member script
	shift 2
	script="modprobe raid0 && echo $name > /sys/module/md_mod/parameters/new_array && cd /sys/block/$name/md &&
		echo raid0 > level && echo $((kib << 10)) > chunk_size && echo $# > raid_disks"
	for member; do
		script+=" && cat /sys/block/$member/dev > new_dev"
	done
	local slot=0
	for member; do
		script+=" && echo $((64 << 10)) > dev-$member/size && echo $slot > dev-$member/slot"
		slot=$((slot + 1))
	done
	# The first open reads the partition table, whose pages stay cached until the last close: requests that meet cached pages move
	# whole.
	must on target "$script && echo active > array_state && [ -b /dev/$name ] && dd if=/dev/$name of=/dev/null bs=4k count=1"
	striped=/dev/$name
}
