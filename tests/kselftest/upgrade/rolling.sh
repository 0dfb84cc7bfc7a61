#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: the machines of a cluster are upgraded one after the other, from another build and in any order, while the other clients read and write.
# takes: 150
# timeout: 1200

. "${0%/*}/../lib/lib.sh"

other=/usr/lib/hcablk-other

# load_build GUEST new|old: unloads the modules, and loads those of a build.
load_build() {
	must on "$1" 'for module in hcablk hcablk_target hcablk_pcimem hcablk_core; do
			[ ! -e /sys/module/$module ] || modprobe -r $module || exit
		done'
	case $2 in
	new) must on "$1" 'modprobe -a hcablk hcablk_target' ;;
	old)
		must on "$1" "cd $other && for module in hcablk_core hcablk_pcimem hcablk hcablk_target; do
				for needed in \$(modinfo -F depends ./\$module.ko | tr , ' '); do
					[ -e \$needed.ko ] || modprobe \$needed || exit
				done
				insmod ./\$module.ko || exit
			done"
		;;
	esac
}
# export_to_both: exports the volume to both clients, as the service does at each start of the target; its wwid stays the same.
export_to_both() {
	export_volume vol1 "$drive" c1 c2 --write-cache through
	must on target "hcablk target listen --address $target_address"
}
# upgrade_target new|old: exchanges the target's modules while its clients read and write.
upgrade_target() {
	must on target 'hcablk target unexport --force vol1 && hcablk target unlisten --all'
	load_build target "$1"
	export_to_both
	for guest in c1 c2; do
		check "$guest reconnects to the target with the $1 build" wait_until "$guest" 120 "grep -q live $initiator/vol1/state"
	done
}
# upgrade_client GUEST new|old: exchanges the client's modules, and verifies what the client wrote before.
upgrade_client() {
	must on "$1" 'hcablk disconnect vol1'
	load_build "$1" "$2"
	connect_client "$1"
	check "$1 with the $2 build reads what it wrote before" on "$1" "$verify --offset=${place[$1]} --filename=$device --verify_only 2>&1"
}
connect_client() {
	connect "$1" vol1 --ctrl-loss-tmo 3000
}
# Each client writes to its own part of the volume, and reads it again.
declare -A place=([c1]=0 [c2]=64m)
verify='fio --name=verify --direct=1 --ioengine=libaio --rw=write --bs=64k --iodepth=8 --size=32m --verify=crc32c --verify_fatal=1'
# load GUEST: writes and verifies in the background until `enough` is called.
load() {
	on "$1" 'rm -f /tmp/enough'
	ON_SECONDS=900 spawn "load-$1" "$1" "n=0; until [ -e /tmp/enough ]; do
			$verify --offset=${place[$1]} --filename=/dev/hcablk0 --do_verify=1 2>&1 || exit; n=\$((n + 1)); done; [ \$n -gt 0 ]"
}
# enough GUEST TEXT: ends the load, and checks that it had no error.
enough() {
	must on "$1" ': > /tmp/enough'
	check "$1 gets no error and no wrong data $2" join "load-$1"
}

for guest in target c1 c2; do
	load_build $guest old
done
like "the command reports modules of a different build" 'of a different build' "$(on c1 'hcablk check 2>&1')"
export_to_both
for guest in c1 c2; do
	connect_client $guest
	load $guest
done
upgrade_target new
enough c1 "while the target was upgraded"
upgrade_client c1 new
load c1
enough c2 "while the target and c1 were upgraded"
upgrade_client c2 new
refuse "the command reports no module of a different build after the upgrade" on c2 'hcablk check 2>&1 | grep "of a different build"'
load c2
# Above, the target was upgraded first. It can also be upgraded last.
upgrade_target old
for guest in c1 c2; do
	enough $guest "while its target is older"
done
upgrade_target new
for guest in c1 c2; do
	must on $guest 'hcablk disconnect vol1'
done
must on target 'hcablk target unexport vol1'
