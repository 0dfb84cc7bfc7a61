#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: a target reports changes of a volume on its own: clients that do not poll follow its size, its read-only state and its end.
# tier: heart
# turn: 0
# takes: 20
# waits: yes

. "${0%/*}/../lib/lib.sh"

must on target 'modprobe loop max_loop=1 && truncate -s 64M /tmp/image && losetup /dev/loop0 /tmp/image'
export_volume vol1 /dev/loop0 c1 c2
# One keep-alive in 5 minutes: a client that knows of a change sooner was notified.
for client in c1 c2; do
	connect $client vol1 --keep-alive-tmo 600
done
# follows CLIENT MIB: waits until the client's disk has this size.
follows() {
	wait_until "$1" 20 "[ \$(blockdev --getsize64 $device) = $(($2 << 20)) ]"
}
# is_ro CLIENT 0|1: waits until the read-only flag of the client's disk has this value
is_ro() {
	wait_until "$1" 20 "[ \$(cat /sys/block/$disk/ro) = $2 ]"
}
notices=0
for mib in 96 80; do
	must on target "truncate -s ${mib}M /tmp/image && losetup -c /dev/loop0"
	notices=$((notices + 1))
	for client in c1 c2; do
		check "$client: its disk follows to $mib MiB" follows $client $mib
		same "$client: the target has sent one notice for each change" $notices "$(stat_of $client $initiator/vol1 notices)"
	done
done
check "the new size can be written" on c1 "dd if=/dev/urandom of=$device bs=1M seek=64 count=16 oflag=direct"
# A device-mapper device does not check whether the disk below it is read-only.
must on c1 "modprobe dm_mod && echo '0 32768 linear $device 0' | dmsetup create heedless && dmsetup mknodes"
# heedless SEEK: tries each operation that changes blocks of 64 KiB; prints those that succeeded.
heedless() {
	on c1 "cd /dev/mapper; yes heedless | head -c 1048576 > /tmp/text
		dd if=/tmp/text of=heedless bs=4k seek=$(($1 * 16)) count=1 oflag=direct conv=notrunc 2> /dev/null && echo small
		dd if=/tmp/text of=heedless bs=64k seek=$(($1 + 1)) count=1 oflag=direct conv=notrunc 2> /dev/null && echo write
		dd if=/tmp/text of=heedless bs=1M seek=4 count=1 oflag=direct conv=notrunc 2> /dev/null && echo large
		blkdiscard -z -o $((8 << 20)) -l 65536 heedless 2> /dev/null && echo zeroes
		blkdiscard -o $((9 << 20)) -l 65536 heedless 2> /dev/null && echo discard
		rm /tmp/text; true" | tr '\n' ' '
}
before=$(on target 'md5sum < /tmp/image')
for ro in 1 0; do
	must on target "echo $ro > /tmp/ro; blockdev $([ $ro = 1 ] && echo --setro || echo --setrw) /dev/loop0"
	for client in c1 c2; do
		check "$client: the disk's read-only flag becomes $ro" is_ro $client $ro
	done
	if [ $ro = 1 ]; then
		refuse "a read-only disk refuses writes" on c1 "dd if=/dev/zero of=$device bs=4k count=1 oflag=direct"
		silent "a read-only disk refuses the writes of a device-mapper device" heedless 0
		same "the volume's data has not changed" "$before" "$(on target 'sync; md5sum < /tmp/image')"
	else
		check "the writable disk is written again" on c1 "dd if=/dev/zero of=$device bs=4k count=1 oflag=direct"
		like "the device-mapper device writes again" "^small write large " "$(heedless 0)"
	fi
done
must on c1 'dmsetup remove heedless'
for client in c1 c2; do
	same "$client: no keep-alive was sent meanwhile" 1 "$(stat_of $client $initiator/vol1 keep_alives)"
	same "$client: the session is the first one, without protocol errors" "live 0" \
		"$(on $client "cat $initiator/vol1/state") $(stat_of $client $initiator/vol1 protocol_errors)"
done
must on target 'hcablk target unexport --force vol1'
check "the disk is removed when its export ends" wait_until c1 30 "[ ! -e /sys/block/$disk ]"
like "the disk's error is the reason that the target reported" "the target ends the export of the volume" "$(on c1 "cat $initiator/vol1/error")"
must on target 'losetup -d /dev/loop0; rm /tmp/image'
