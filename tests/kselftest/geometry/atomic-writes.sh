#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: RWF_ATOMIC reaches the drive as one atomic write within the drive's limits, also where its pages are cached, and is offered only in modes that support it.
# turn: 21
# takes: 15
# guests: target c1
# skips: debug
# timeout: 300

. "${0%/*}/../lib/lib.sh"

on target 'modprobe sd_mod' || skip "the kernel has no SCSI"
must on target "modprobe scsi_debug dev_size_mb=64 atomic_wr=1 atomic_wr_max_length=256 atomic_wr_gran=8 atomic_wr_align=8 delay=0 &&
	until name=\$(ls /sys/bus/pseudo/drivers/scsi_debug/adapter0/host*/target*/*/block) && [ -b /dev/\$name ]; do usleep 50000; done 2> /dev/null
	ln -s \$name /dev/scsi"
scsi=/dev/$(on target 'readlink /dev/scsi')
there=$(on target "cd /sys/block/${scsi#/dev/}/queue && cat atomic_write_unit_min_bytes atomic_write_unit_max_bytes")
less "the drive has atomic writes" 4095 "$(head -n1 <<< "$there")"
limits() {
	on c1 "cd /sys/block/$disk/queue && cat atomic_write_unit_min_bytes atomic_write_unit_max_bytes"
}
# commands: prints the number of WRITE ATOMIC (16) commands of the drive since the last call.
must on target "cd /sys/kernel/tracing && echo 'opcode == 0x9c' > events/scsi/scsi_dispatch_cmd_start/filter && echo 1 > events/scsi/scsi_dispatch_cmd_start/enable"
commands() {
	on target "cat /sys/kernel/tracing/trace; echo > /sys/kernel/tracing/trace" | grep -c scsi_dispatch_cmd_start
}
# writes BYTES: writes the bytes $fill atomically
writes() {
	on c1 "fio --name=w --filename=$device --rw=write --bs=$1 --size=$1 --ioengine=pvsync2 --atomic=1 --direct=1 --buffer_pattern=0x$fill > /dev/null"
}
holds() {
	on "$1" "dd if=$2 bs=$3 count=1 iflag=direct | od -An -v -tx1 -w1 | sort -u | tr -d ' \n'"
}
export_volume vol1 "$scsi" --chunk-kib=64 c1
connect c1 vol1
same "the client has the drive's limits" "$there" "$(limits)"
commands > /dev/null
fill=11
for bytes in 4096 131072; do
	check "a write of $bytes bytes is atomic" writes $bytes
	same "$bytes: the drive gets one command" 1 "$(commands)"
	same "$bytes: the data is on the drive" $fill "$(holds c1 "$device" $bytes)"
	fill=$((fill + 11))
done
refuse "a write of 262144 bytes cannot be atomic" writes 262144
must on target "dd if=$scsi of=/dev/null bs=128k count=1"
check "a write is atomic also where the target has cached pages" writes 131072
same "the drive gets one command for cached pages" 1 "$(commands)"
same "the target's readers of these pages see the write" $fill "$(on target "dd if=$scsi bs=128k count=1 | od -An -v -tx1 -w1 | sort -u | tr -d ' \n'")"
disconnect c1 vol1
for options in --mode=cached --cache-mib=8; do
	must on target 'hcablk target unexport vol1'
	export_volume vol1 "$scsi" $options c1
	connect c1 vol1
	same "$options: the disk has no atomic writes" "0 0" "$(limits | tr '\n' ' ' | sed 's/ $//')"
	refuse "$options: an atomic write is refused" writes 4096
	disconnect c1 vol1
done
must on target "hcablk target unexport vol1 && echo 0 > /sys/kernel/tracing/events/scsi/scsi_dispatch_cmd_start/enable && rm /dev/scsi && rmmod scsi_debug"
