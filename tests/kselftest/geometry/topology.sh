#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: lsblk and mkfs.xfs see the same topology of a disk as of its drive: striped, RAID 5, a misaligned partition, and a SCSI disk that reports all limits.
# tier: heart
# turn: 11
# takes: 20
# guests: target c1
# skips: debug
# timeout: 600

. "${0%/*}/../lib/lib.sh"

on target 'modprobe sd_mod' || skip "the kernel has no SCSI"
# seen DISK: prints the limits of the disk that tools report. Request sizes and read-ahead belong to each machine.
# shellcheck disable=SC2016 # expanded in the guest
seen='seen() {
	lsblk -dnb -o ALIGNMENT,MIN-IO,OPT-IO,PHY-SEC,LOG-SEC,ROTA $1
	# For a whole disk the kernel shows the offset of physical blocks as that of discards.
	echo "discards: $(lsblk -dnb -o DISC-GRAN $1)"
	local sys=$(readlink -f /sys/class/block/${1#/dev/})
	[ -d $sys/queue ] || sys=${sys%/*}
	echo "zeroes unmap: $(grep -qx 0 $sys/queue/write_zeroes_unmap_max_hw_bytes; echo $?)"
	mkfs.xfs -N -f $1 | grep -E "sectsz|sunit"
}'
seen() {
	on "$1" "$seen; seen $2"
}

# is_passed_on NAME DRIVE REGEX: checks that the target's tools report REGEX about the drive, and that the client's report the same.
is_passed_on() {
	local name=$1 path=$2 there
	there=$(seen target "$path")
	export_volume "$name" "$path" c1
	connect c1 "$name"
	like "$name: the target's tools report the drive's topology" "$3" "$there"
	same "$name: the client's tools report the same" "$there" "$(seen c1 "$device")"
	disconnect c1 "$name"
	must on target "hcablk target unexport $name"
}

must on target "modprobe dm_mod && printf '0 1966080 striped 2 256 $drive 0 $drive2 0\n' | dmsetup create stripes && dmsetup mknodes"
is_passed_on striped "/dev/$(on target 'dmsetup info -c --noheadings -o blkdevname stripes')" "131072 *262144"
must on target 'dmsetup remove stripes'

must on target "modprobe raid456 && for n in 0 1 2; do
		printf '0 409600 linear $drive %s\n' \$((n * 409600)) | dmsetup create part\$n || exit
	done && dmsetup mknodes && mdadm --create /dev/md0 --run --assume-clean --metadata=1.2 --level=5 --raid-devices=3 --chunk=64 \
		--bitmap=none /dev/mapper/part0 /dev/mapper/part1 /dev/mapper/part2"
is_passed_on raid5 /dev/md0 "65536 *131072"
must on target 'mdadm --stop /dev/md0 && for n in 0 1 2; do mdadm --zero-superblock /dev/mapper/part$n && dmsetup remove part$n || exit; done'

must on target "modprobe scsi_debug dev_size_mb=16 virtual_gb=1 physblk_exp=3 opt_xferlen_exp=6 opt_blks=1024 lbpu=1 lbpws=1 \
		unmap_granularity=64 unmap_alignment=8 delay=0 &&
	until name=\$(ls /sys/bus/pseudo/drivers/scsi_debug/adapter0/host*/target*/*/block) && [ -b /dev/\$name ]; do usleep 50000; done 2> /dev/null
	ln -s \$name /dev/scsi"
scsi=/dev/$(on target 'readlink /dev/scsi')
is_passed_on scsi "$scsi" "32768 *524288 *4096 *512"
must on target "printf 'label: dos\nunit: sectors\nstart=63\n' | sfdisk -q --wipe always $scsi && until [ -b ${scsi}1 ]; do usleep 50000; done"
# 63 * 512 is 512 bytes less than a multiple of a physical block.
is_passed_on partition "${scsi}1" "^ *512 "
must on target 'rm /dev/scsi && rmmod scsi_debug'
