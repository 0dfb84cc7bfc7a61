#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: when work requests fail on a queue pair, or a port is down, on either side, a disk with one path waits and one with two continues: no error, no wrong data.
# turn: 4
# takes: 190
# guests: hca
# timeout: 1800

. "${0%/*}/../lib/lib.sh"
. "${0%/*}/../lib/hca.sh"
. "${0%/*}/../lib/multi.sh"

hca_pair
must on target "echo 'write through' > /sys/block/\$(basename \$(readlink -f $drive))/queue/write_cache"
must on target 'hcablk target listen && hcablk target listen --id 7 --port 7755'
export_volume vol1 "$drive" c1

# row FAULT DEVICE "DESCRIPTION": as in matrix.sh, for disks with one path and with two paths through the same device
row() {
	local fault=$1 dev=$2 what=$3 paths before
	for paths in 1 2; do
		connect c1 vol1 --ctrl-loss-tmo 600 --keep-alive-tmo 1 --io-timeout 10 --queues 2
		if [ $paths = 2 ]; then
			must on c1 "cd $initiator/vol1/paths && mkdir 1 && echo $target_address > 1/address && echo 7755 > 1/port && echo 1 > 1/enable"
			must disk_is c1 vol1 live
		fi
		before=$(on c1 "dmesg | grep -c 'vol1: .* lost'")
		spawn verify c1 "fio --name=v --filename=$device --direct=1 --ioengine=libaio --rw=randrw --bsrange=4k-64k \
			--iodepth=16 --size=12M --verify=crc32c --verify_fatal=1 --randseed=$RANDOM --rate=1m"
		must wait_until c1 30 "awk '{ exit !(\$1 + \$5 > 40) }' /sys/block/$disk/stat"
		"fault_$fault" "$dev"
		check "$what, $paths paths: a path is lost" wait_until c1 60 "[ \$(dmesg | grep -c 'vol1: .* lost') -gt $before ]"
		"mend_$fault" "$dev"
		check "$what, $paths paths: the disk is live again" disk_is c1 vol1 live
		check "$what, $paths paths: fio verifies the data" join verify
		same "$what, $paths paths: no request has failed" 0 "$(stat_of c1 $initiator/vol1 errors)"
		[ $paths = 1 ] || must on c1 "echo 0 > $initiator/vol1/paths/1/enable && rmdir $initiator/vol1/paths/1"
		disconnect c1 vol1
	done
}
fault_work() { knob "$1" fail_wr 20; }
mend_work() { :; }
fault_post() { knob "$1" fail_post 20; }
mend_post() { knob "$1" fail_post 0; }
fault_port() { knob "$1" port 0; }
mend_port() { knob "$1" port 1; }
fault_stall() { knob "$1" stall 1; }
mend_stall() { knob "$1" stall 0; }

row work hca0 "a work request of the client fails"
row work hca1 "a work request of the target fails"
row post hca0 "posting at the client fails"
row port hca1 "the target's port is down"
row port hca0 "the client's port is down"
row stall hca1 "the target's device hangs"
must on target 'hcablk target unexport vol1 && hcablk target unlisten --all'
must on c1 'modprobe -r hcablk hcablk_target'
check "the module of the devices can be removed" on c1 "rmmod hcablk_hca"
