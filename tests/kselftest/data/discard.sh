#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: discards and writes of zeroes reach the target's drive as such, change the named blocks only, and are offered only if the drive supports them.
# tier: heart
# turn: 15
# takes: 15
# timeout: 480

. "${0%/*}/../lib/lib.sh"

trace=/sys/kernel/tracing
mib=$((1 << 20))

# queue NAME [GUEST DISK]: prints a queue limit of c1's disk, or of the guest's disk.
queue() {
	on "${2:-c1}" "cat /sys/block/${3:-$disk}/queue/$1"
}

# commands NAME: prints the commands of this kind that the drive got since the trace was emptied.
commands() {
	on target "cat $trace/trace" | sed -n "s/.*nvme_setup_cmd: .*cmd=(\(nvme_cmd_$1.*\))/\1/p"
}

share c1
real=$(on target "readlink -f $drive")
for limit in discard_max_hw_bytes discard_granularity write_zeroes_max_bytes; do
	less "the drive has a $limit" 0 "$(queue $limit target "${real#/dev/}")"
done
same "the disk's discard limit is the drive's, or that of 32 bits" "$(queue discard_max_hw_bytes target "${real#/dev/}" |
	awk '{ print $1 < 4294966784 ? $1 : 4294966784 }')" "$(queue discard_max_hw_bytes)"
for limit in discard_granularity write_zeroes_max_bytes; do
	same "the disk's $limit is the drive's" "$(queue $limit target "${real#/dev/}")" "$(queue $limit)"
done

must on target "echo 1 > $trace/events/nvme/nvme_setup_cmd/enable; echo > $trace/trace"
must on c1 "dd if=/dev/urandom of=/tmp/data bs=1M count=4 && dd if=/tmp/data of=$device bs=1M oflag=direct"
must on target "echo > $trace/trace"
check "the client discards a range" on c1 "blkdiscard -o $mib -l $mib $device"
like "the drive gets a DSM command" "^nvme_cmd_dsm" "$(commands dsm)"
same "the client counts one discard" "1 $mib" "$(stat_of c1 $initiator/vol1 discards) $(stat_of c1 $initiator/vol1 discarded_bytes)"
same "the target counts one discard" "1 $mib" "$(stat_of target $target/volumes/vol1 discards) $(stat_of target $target/volumes/vol1 discarded_bytes)"

must on target "echo > $trace/trace"
check "the client writes zeroes" on c1 "blkdiscard -z -o $((2 * mib + 512)) -l 8192 $device"
like "the drive gets a command that writes zeroes and must not unmap" "slba=4097, len=15, ctrl=0x0," "$(commands write_zeroes)"
must on target "echo > $trace/trace"
check "the client punches a hole" on c1 "fallocate -p -o $((3 * mib)) -l 4096 $device"
like "the drive gets a command that writes zeroes and may unmap" "slba=6144, len=7, ctrl=0x200," "$(commands write_zeroes)"
same "the client counts both writes of zeroes" "2 12288" "$(stat_of c1 $initiator/vol1 zeroes) $(stat_of c1 $initiator/vol1 zeroed_bytes)"
same "the target counts both writes of zeroes" "2 12288" "$(stat_of target $target/volumes/vol1 zeroes) $(stat_of target $target/volumes/vol1 zeroed_bytes)"
must on c1 "dd if=/dev/zero of=/tmp/data bs=512 seek=$((2 * mib / 512 + 1)) count=16 conv=notrunc &&
	dd if=/dev/zero of=/tmp/data bs=4096 seek=$((3 * mib / 4096)) count=1 conv=notrunc"
check "zeroed blocks read as zeroes, and their neighbours as before" on c1 "
	dd if=$device of=/tmp/back bs=1M count=4 iflag=direct && cmp -n $mib /tmp/data /tmp/back &&
	cmp -i $((2 * mib)) /tmp/data /tmp/back"
check "the client discards the whole disk" on c1 "blkdiscard $device"
check "the client writes the disk again" on c1 "hcablk-scatter $device random 46 8"
same "the client has no errors" "0 0" "$(stat_of c1 $initiator/vol1 errors) $(stat_of c1 $initiator/vol1 protocol_errors)"
disconnect c1 vol1

# A drive that supports neither discards nor writes of zeroes.
must on target 'modprobe null_blk nr_devices=0 && mkdir /sys/kernel/config/nullb/plain && cd /sys/kernel/config/nullb/plain &&
	echo 64 > size && echo 1 > memory_backed && echo 1 > power'
export_volume plain /dev/plain c1
connect c1 plain
same "the disk does not offer what the drive does not support" "0 0" "$(queue discard_max_hw_bytes) $(queue write_zeroes_max_bytes)"
refuse "a discard of such a disk is refused at once" on c1 "blkdiscard $device"
must on c1 "dd if=/dev/urandom of=$device bs=4k count=16 oflag=direct"
check "zeroes of such a disk are written as data" on c1 "blkdiscard -z -l 65536 $device && cmp -n 65536 $device /dev/zero"
same "no discard and no write of zeroes went over the wire" "0 0" "$(stat_of c1 $initiator/plain discards) $(stat_of c1 $initiator/plain zeroes)"
disconnect c1 plain
