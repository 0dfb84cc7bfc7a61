# shellcheck shell=bash disable=SC2034,SC2154 # names are for the tests, and from lib.sh
# SPDX-License-Identifier: GPL-2.0
#
# What the tests share whose guests are whole Debian machines (scripts/machine-image): mt, a target, and m1 and m2, its
# clients. Nothing of hcablk is on them before the test installs the packages, which are on a disk with the label packages.

_place=([target]=mt [c1]=m1 [c2]=m2)
target_address=10.77.0.31
# dpkg is slow on an emulated machine.
ON_SECONDS=900
machine_drive=/dev/disk/by-id/nvme-QEMU_NVMe_Ctrl_drive0

# settled GUEST: systemd has started all there is to start; prints what failed.
settled() {
	ON_SECONDS=300 on "$1" 'systemctl is-system-running --wait > /dev/null || { systemctl --failed --no-legend --plain; systemctl list-jobs; }'
}

# started GUEST…: they have started, and no unit failed.
started() {
	local guest
	for guest; do
		silent "$guest has started, and no unit failed" settled "$guest"
	done
}

# install_packages GUEST…: as the documents say.
install_packages() {
	local guest
	for guest; do
		check "$guest: the packages are installed" on "$guest" "mount -r LABEL=packages /mnt &&
			DEBIAN_FRONTEND=noninteractive apt-get install -y /mnt/hcablk_*.deb /mnt/hcablk-modules-\$(uname -r)_*.deb; r=\$?; umount /mnt; exit \$r"
	done
}

# exchange_keys GUEST…: each proves who it is to the target, and the target to each.
exchange_keys() {
	local guest key
	must on target 'hcablk key generate target'
	for guest; do
		must on "$guest" "hcablk key generate host && echo '$(on target 'hcablk key show target')' | hcablk key add target default"
		key=$(on "$guest" 'hcablk key show host')
		must on target "echo '$key' | hcablk key add host $(on "$guest" 'hcablk host-id')"
	done
}

# reach_target GUEST…: the network between the machines works. Where it does not, hcablk is not to blame.
reach_target() {
	local guest
	for guest; do
		check "$guest: the network reaches the target" wait_until "$guest" 200 "ping -c 1 -W 2 $target_address > /dev/null"
	done
}

# shut_down GUEST…: in order, all at once; they are off then.
shut_down() {
	local guest
	for guest; do
		must on "$guest" 'systemctl poweroff --no-block'
	done
	for guest; do
		check "$guest shuts down" vm off "$guest" 900
	done
}

# boot GUEST…: starts them, one after the other, each without waiting for what it mounts.
boot() {
	local guest
	for guest; do
		must vm start "$guest"
	done
}

# mounted GUEST PLACE: it comes to be mounted there from one of our disks.
mounted() {
	wait_until "$1" 400 "findmnt -n -o SOURCE $2 | grep -q '^/dev/hcablk'"
}
