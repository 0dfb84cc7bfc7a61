#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: a file on overlayfs is refused, in the upper and in the lower layer: its pages are written back to another file, whose errors nobody gets.
# turn: 2
# takes: 10
# skips: debug

. "${0%/*}/../lib/lib.sh"

on target 'modprobe -q overlay' || skip "this kernel has no overlayfs"

# refused "WHAT" FILE
refused() {
	local output
	output=$(on target "hcablk target export bad $2 --mode cached 2>&1") && fail "$1 is refused" && return
	like "$1 is refused" overlayfs "$output"
}

must on target "modprobe ext4; mkfs.ext4 -q -F -b 4096 $drive2 32M; mkdir -p /mnt/files && mount $drive2 /mnt/files &&
	mkdir -p /mnt/files/upper /mnt/files/work /mnt/files/lower /mnt/over && truncate -s 4M /mnt/files/lower/below"
for options in '' ,volatile; do
	must on target "mount -t overlay -o lowerdir=/mnt/files/lower,upperdir=/mnt/files/upper,workdir=/mnt/files/work$options overlay /mnt/over &&
		truncate -s 4M /mnt/over/above"
	for file in above below; do
		refused "${options:-usual}, $file" /mnt/over/$file
	done
	must on target "umount /mnt/over && rm -rf /mnt/files/work && mkdir -p /mnt/files/work"
done
must on target 'umount /mnt/files'
