#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: a write that goes through the page cache to the drive fails when one of its pages is lost, and a request that waits next to it does not get that error.
# turn: 4
# takes: 15

. "${0%/*}/../lib/lib.sh"

# The drive can lose the first half of the first 8 KiB, and hold up the second half.
size=65536
must on target "modprobe dm_mod && echo '0 8 linear $drive2 8' | dmsetup create late && dmsetup mknodes"
# table linear|error
table() {
	local first="linear $drive2 0"
	[ "$1" = linear ] || first=error
	printf '0 8 %s\\n8 8 linear /dev/mapper/late 0\\n16 %s linear %s 16\\n' "$first" $((size - 16)) "$drive2"
}
must on target "printf '$(table linear)' | dmsetup create both && dmsetup mknodes"
both=/dev/$(on target 'dmsetup info -c --noheadings -o blkdevname both')
export_volume direct "$both" c1
export_volume cached "$both" --mode=cached c1
connect c1 direct
direct=$device
connect c1 cached
must on target "blockdev --setra 0 $both; echo 360000 > /proc/sys/vm/dirty_expire_centisecs; echo 0 > /proc/sys/vm/dirty_writeback_centisecs"
becomes() {
	must on target "dmsetup suspend --nolockfs both && printf '$(table "$1")' | dmsetup load both && dmsetup resume both"
}
# begin DISK FLAGS: starts a write of 8 KiB: half of it is lost, the other half is being written.
begin() {
	becomes linear
	must on target "dd if=$both of=/dev/null bs=4k count=2; dd if=$both of=/dev/null bs=4k skip=16 count=1"
	becomes error
	must on target 'dmsetup suspend --nolockfs late'
	spawn wide c1 "dd if=/dev/urandom of=$1 bs=8k count=1 conv=notrunc oflag=$2"
	must wait_until target 30 "awk '{ exit !(\$2 >= 1) }' /sys/block/${both#/dev/}/inflight"
}
# end "DESCRIPTION"
end() {
	check "$1: meanwhile the first write is being written" on target "awk '{ exit !(\$2 >= 1) }' /sys/block/${both#/dev/}/inflight"
	must on target 'dmsetup resume late'
	refuse "$1: the write with a lost half fails" join wide
}

begin "$direct" direct
check "another write that meets cached pages succeeds" on c1 "dd if=/dev/zero of=$direct bs=4k seek=16 count=1 conv=notrunc oflag=direct"
end "next to a write"

must on target "dd if=/dev/urandom of=$both bs=4k seek=32 count=1 conv=notrunc"
begin "$direct" direct
check "a read that meets dirty pages succeeds" on c1 "dd if=$direct of=/tmp/read bs=4k skip=32 count=1 iflag=direct"
end "next to a read"
# On a difference: prints the page cache's data, the drive's data, and the data of the read.
cached=$(on target "dd if=$both bs=4k skip=32 count=1 status=none | sha256sum") read=$(on c1 'sha256sum < /tmp/read')
same "the read returns the dirty pages" "$cached" "$read"
[ "$cached" = "$read" ] || {
	on target "for flag in fullblock direct; do dd if=$both bs=4k skip=32 count=1 iflag=\$flag status=none | od -An -tx1 -N 32; done"
	on c1 'od -An -tx1 -N 32 /tmp/read; wc -c < /tmp/read'
} >&2

# A write with FUA flushes the drive, which has lost a part, and through the page cache it reports the losses of its session: the
# second write may fail as well, and then fails at once.
for disk in "$direct" "$device"; do
	begin "$disk" direct,dsync
	must on c1 'rm -f /tmp/beside'
	spawn beside c1 "dd if=/dev/zero of=$disk bs=4k seek=16 count=1 conv=notrunc oflag=direct,dsync; : > /tmp/beside"
	must wait_until c1 30 "[ -e /tmp/beside ] || awk '{ exit !(\$2 >= 2) }' /sys/block/${disk#/dev/}/inflight"
	must on target 'dmsetup resume late'
	must join beside
	refuse "both with FUA, $disk: the write with a lost half fails" join wide
done

becomes linear
check "writes succeed again when the drive works" on c1 "dd if=/dev/urandom of=$direct bs=8k count=1 conv=notrunc oflag=direct,dsync"
must on target 'echo 3000 > /proc/sys/vm/dirty_expire_centisecs; echo 500 > /proc/sys/vm/dirty_writeback_centisecs'
on c1 'rm /tmp/read /tmp/beside; hcablk disconnect --force cached'
disconnect c1 direct
must on target 'hcablk target unexport --force cached && hcablk target unexport direct && dmsetup remove both && dmsetup remove late'
