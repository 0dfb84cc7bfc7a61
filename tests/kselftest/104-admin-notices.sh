#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: a target tells what changes of a volume by itself: clients that ask for nothing follow its size, whether it is read-only, and its end.
# group: admin
# waits: yes

. "${0%/*}/lib.sh"

must on target 'modprobe loop max_loop=1 && truncate -s 64M /tmp/image && losetup /dev/loop0 /tmp/image'
export_volume vol1 /dev/loop0 c1 c2
# A keep-alive each 5 minutes: what is known sooner was not asked for.
for client in c1 c2; do
	connect $client vol1 --keep-alive-tmo 600
done
# follows CLIENT MIB: its disk gets to this size.
follows() {
	wait_until "$1" 20 "[ \$(blockdev --getsize64 $device) = $(($2 << 20)) ]"
}
# is_ro CLIENT 0|1
is_ro() {
	wait_until "$1" 20 "[ \$(cat /sys/block/$disk/ro) = $2 ]"
}
notices=0
for mib in 96 80; do
	must on target "truncate -s ${mib}M /tmp/image && losetup -c /dev/loop0"
	notices=$((notices + 1))
	for client in c1 c2; do
		check "$client: its disk follows to $mib MiB" follows $client $mib
		same "$client: it was told once for each change" $notices "$(stat_of $client $initiator/vol1 notices)"
	done
done
check "within the new size it is read and written" on c1 "dd if=/dev/urandom of=$device bs=1M seek=64 count=16 oflag=direct"
for ro in 1 0; do
	must on target "echo $ro > /tmp/ro; blockdev $([ $ro = 1 ] && echo --setro || echo --setrw) /dev/loop0"
	for client in c1 c2; do
		check "$client: ro becomes $ro" is_ro $client $ro
	done
	if [ $ro = 1 ]; then
		refuse "then it is not written" on c1 "dd if=/dev/zero of=$device bs=4k count=1 oflag=direct"
	else
		check "then it is written again" on c1 "dd if=/dev/zero of=$device bs=4k count=1 oflag=direct"
	fi
done
for client in c1 c2; do
	same "$client: nothing was asked for" 1 "$(stat_of $client $initiator/vol1 keep_alives)"
	same "$client: in one session, and in order" "live 0" \
		"$(on $client "cat $initiator/vol1/state") $(stat_of $client $initiator/vol1 protocol_errors)"
done
must on target 'hcablk target unexport --force vol1'
check "its export ends: the disk goes" wait_until c1 30 "[ ! -e /sys/block/$disk ]"
like "for the reason that the target told" "the target ends the export of the volume" "$(on c1 "cat $initiator/vol1/error")"
must on target 'losetup -d /dev/loop0; rm /tmp/image'
