#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: two clients with one OCFS2 mounted, over one path and over two, survive a cut path, a flapping path and a target that is down for 40 s: no node fences itself, no file is wrong.
# turn: 22
# takes: 95
# alone: OCFS2 fences a node that has not written for 60 s, however busy the machine is
# skips: siw debug
# timeout: 1600

. "${0%/*}/../lib/lib.sh"
. "${0%/*}/../lib/multi.sh"
. "${0%/*}/../lib/matrix.sh"

[ "$rdma" = rxe ] || skip "TCP notices a silent peer only when a request gets no response in time"

outage=40
matrix_begin
device=${matrix_device[c1]}
# The cluster's own messages use a network of neither path.
ocfs2_net=10.77.3
must on c1 "ip address add $ocfs2_net.2/24 dev br1"
must on c2 "ip address add $ocfs2_net.3/24 dev br1"
ocfs2_start c1 c2
must on c1 "mkfs.ocfs2 -q -x -N 4 -b 4096 -C 4096 --cluster-stack=o2cb --cluster-name=c $device 65536"
for guest in c1 c2; do
	spawn $guest $guest "mkdir -p /mnt/o && mount.ocfs2 ${matrix_device[$guest]} /mnt/o"
done
for guest in c1 c2; do
	must join $guest
done
declare -A boot
for guest in c1 c2; do
	boot[$guest]=$(on $guest 'cat /proc/sys/kernel/random/boot_id')
	# Writes file after file, keeps a copy of each outside the disk, and compares each file after writing it.
	ON_SECONDS=900 spawn "files-$guest" $guest 'n=0
		until [ -e /tmp/stop ]; do
			n=$((n + 1))
			f=$(hostname).$((n % 8))
			head -c 200k /dev/urandom > /tmp/$f && dd if=/tmp/$f of=/mnt/o/$f bs=64k conv=fsync 2> /dev/null || exit 1
			cmp /tmp/$f /mnt/o/$f || exit 1
			echo $n > /tmp/files
		done'
done
# go_on: waits until both clients have written more files
go_on() {
	local guest before
	for guest in c1 c2; do
		before=$(on $guest 'cat /tmp/files || echo 0')
		wait_until $guest 90 "[ \$(cat /tmp/files) -gt $((before + 3)) ]" || return
	done
}
check "both write files" go_on
loses path1
check "a path is cut: c1 waits" disk_is c1 vol1 queueing
check "a path is cut: c2 continues over the other path" disk_is c2 vol1 degraded
heals path1
check "the path is back: both write files" go_on

for _ in 1 2 3; do
	loses path2
	must disk_is c2 vol1 degraded
	heals path2
	must disk_is c2 vol1 live
done
check "the other path flaps: both write files" go_on

must on target 'hcablk target unexport --force vol1 && hcablk target unlisten --all && rmmod hcablk_target hcablk_core'
away=$(on target 'cut -d. -f1 /proc/uptime')
for guest in c1 c2; do
	check "the target is down: $guest waits" disk_is $guest vol1 queueing
done
must wait_until target $((outage + 60)) "[ \$(cut -d. -f1 /proc/uptime) -ge $((away + outage)) ]"
for guest in c1 c2; do
	same "after $outage s $guest still waits" queueing "$(on $guest "cat $initiator/vol1/state")"
done
matrix_target
for guest in c1 c2; do
	check "the target is back: $guest's disk is live" disk_is $guest vol1 live
done
check "the target is back: both write files" go_on
for guest in c1 c2; do
	must on $guest 'touch /tmp/stop'
	check "$guest read back each file as it wrote it" join "files-$guest"
	same "$guest has not fenced itself" "${boot[$guest]}" "$(on $guest 'cat /proc/sys/kernel/random/boot_id')"
	same "no request of $guest has failed" 0 "$(stat_of $guest $initiator/vol1 errors)"
done
other() { [ "$1" = c1 ] && echo c2 || echo c1; }
for guest in c1 c2; do
	same "$(other $guest) reads what $guest wrote" "$(on $guest "cd /tmp && sha256sum $guest.?")" \
		"$(on "$(other $guest)" "cd /mnt/o && sha256sum $guest.?")"
done
for guest in c1 c2; do
	check "$guest unmounts the file system" on $guest 'umount /mnt/o'
done
check "the file system is sound" on c1 "fsck.ocfs2 -fn $device"
ocfs2_stop c1 c2
must on c1 'rm -f /tmp/stop /tmp/files /tmp/c1.?'
must on c2 'rm -f /tmp/stop /tmp/files /tmp/c2.?'
matrix_end
