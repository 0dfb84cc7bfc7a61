# shellcheck shell=bash disable=SC2034,SC2154 # names are for the tests, and from lib.sh
# SPDX-License-Identifier: GPL-2.0
#
# Functions of the tests whose guests are whole Debian machines (scripts/machine-image): mt, a target, and m1 and m2, its clients.
# hcablk is not installed before the test installs the packages, which are on a disk with the label packages.

_place=([target]=mt [c1]=m1 [c2]=m2)
target_address=10.77.0.31
# dpkg is slow on an emulated machine.
ON_SECONDS=900
machine_drive=/dev/disk/by-id/nvme-QEMU_NVMe_Ctrl_drive0

# settled GUEST: waits until systemd has started all units; prints those that failed.
settled() {
	ON_SECONDS=300 on "$1" 'systemctl is-system-running --wait > /dev/null || { systemctl --failed --no-legend --plain; systemctl list-jobs; }'
}

# started GUEST…: checks that the guests have started and that no unit failed.
started() {
	local guest
	for guest; do
		silent "$guest has started, and no unit failed" settled "$guest"
	done
}

# install_packages GUEST…: installs the packages as the documents describe.
install_packages() {
	local guest
	for guest; do
		check "$guest: apt installs the packages" on "$guest" "mount -r LABEL=packages /mnt &&
			DEBIAN_FRONTEND=noninteractive apt-get install -y /mnt/hcablk_*.deb /mnt/hcablk-modules-\$(uname -r)_*.deb; r=\$?; umount /mnt; exit \$r"
	done
}

# exchange_keys GUEST…: gives the target and each guest the keys with which they authenticate each other.
exchange_keys() {
	local guest key
	must on target 'hcablk key generate target'
	for guest; do
		must on "$guest" "hcablk key generate host && echo '$(on target 'hcablk key show target')' | hcablk key add target default"
		key=$(on "$guest" 'hcablk key show host')
		must on target "echo '$key' | hcablk key add host $(on "$guest" 'hcablk host-id')"
	done
}

# reach_target GUEST…: waits until the network between each guest and the target works: without it no test of hcablk can pass.
reach_target() {
	local guest
	for guest; do
		check "$guest: the network reaches the target" wait_until "$guest" 200 "ping -c 1 -W 2 $target_address > /dev/null"
	done
}

# shut_down GUEST…: shuts the guests down in order, all at once, and waits until they are off.
shut_down() {
	local guest
	for guest; do
		must on "$guest" 'systemctl poweroff --no-block'
	done
	for guest; do
		check "$guest shuts down" vm off "$guest" 900
	done
}

# boot GUEST…: starts the guests, one after the other, without waiting for their mounts.
boot() {
	local guest
	for guest; do
		must vm start "$guest"
	done
}

# mounted GUEST PLACE: waits until one of our disks is mounted there.
mounted() {
	wait_until "$1" 400 "findmnt -n -o SOURCE $2 | grep -q '^/dev/hcablk'"
}
