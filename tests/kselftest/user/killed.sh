#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: programs that are killed while they read and write leave nothing on either machine and change nothing for other clients of the volume; a write of a killed program never overtakes one of its successor.
# turn: 16
# takes: 85
# waits: yes
# skips: siw
# timeout: 900

. "${0%/*}/../lib/lib.sh"

[ "$rdma" = rxe ] || skip "the library needs memory windows, which soft-iWARP does not have"
must on c1 'modprobe rdma_ucm'

# Each program verifies the first MiBs of the volume; the other clients have their own.
export_volume vol1 "$drive" c1 c2
connect c2 vol1
ON_SECONDS=800 spawn disk c2 "until [ -e /tmp/stop ]; do fio --name=v --filename=$device --offset=512M --direct=1 --ioengine=libaio \
	--rw=randrw --bsrange=4k-64k --size=8M --iodepth=16 --verify=crc32c --verify_fatal=1 || exit 1; done"
ON_SECONDS=800 spawn held c1 "exec hcablk-user --event --ctrl-loss-tmo=0 $target_address vol1 hold > /tmp/held 2>&1"
must wait_until c1 60 'grep -q ^open /tmp/held'
owned=$(queue_pairs c1)
written=/sys/block/$(on target "basename \$(readlink -f $drive)")/stat
writes() {
	on target "awk '{ print \$5 }' $written"
}
for round in 1 2 3; do
	# Windows are bound in each round but the first: all data moves through them.
	how=$([ $round = 1 ] || echo --small-read=0 --eager-write=0)
	spawn victim c1 "hcablk-user $how --queues=3 $target_address vol1 verify $round > /dev/null 2>&1 & echo \$! > /tmp/pid; wait \$!"
	# It has all of its queues, and the drive gets writes.
	must wait_until target 60 "grep -q ' 3$' $target/volumes/vol1/clients"
	before=$(writes)
	must wait_until target 60 "[ \$(awk '{ print \$5 }' $written) -gt $((before + 50 * round)) ]"
	must on c1 'kill -9 $(cat /tmp/pid)'
	code=0
	join victim || code=$?
	same "round $round: the program was killed while it worked" 137 "$code"
	check "round $round: no queue pair of the killed program is left on its machine" wait_until c1 60 "[ \$(rdma resource show qp | grep -vc 'type GSI') = $owned ]"
done
check "the program that was not killed keeps its session" on c1 '! grep -E "^(lost|ended|failed)" /tmp/held'
check "the target has the sessions of the other clients only" wait_until target 60 "[ \$(grep -c . $target/volumes/vol1/clients) = 2 ]"
must on c2 'touch /tmp/stop'
check "the kernel driver's disk on the other machine reads its data back" join disk
check "a program reads the volume after that" on c1 "hcablk-user --queues=3 $target_address vol1 read 0 65536 | wc -c | grep -x 65536"
disconnect c2 vol1
must on target 'hcablk target unexport --force vol1'
join held

# A drive whose second half is the first half under other addresses, and late. The program is killed while the drive has its write.
must on target "modprobe dm_mod && printf '0 65536 linear $drive 0\n65536 65536 delay $drive 0 0 $drive 0 $((6000 * slow))\n' | dmsetup create slow && dmsetup mknodes"
export_volume vol1 /dev/mapper/slow --wwid=6f0c2b62-5f5e-4c0e-9d57-0b8f3e9b0a46 c1
spawn late c1 "hcablk-user --session=7 --queues=2 --io-timeout=600 $target_address vol1 late $((32 << 20)) > /dev/null 2>&1 & echo \$! > /tmp/pid; wait \$!"
must wait_until target 60 "dmsetup status slow | grep -q ' delay [0-9]* [1-9]'"
must on c1 'kill -9 $(cat /tmp/pid)'
join late
check "a successor with the same session writes where the killed program's write is under way" \
	on c1 "head -c 512 /dev/zero | tr '\\000' '\\273' | hcablk-user --session=7 --connect-timeout=$((60 * slow)) $target_address vol1 write 0"
must on target 'dmsetup suspend slow && dmsetup resume slow'
same "the drive has the successor's write" 0 "$(on target "dd if=$drive bs=512 count=1 iflag=direct status=none | tr -d '\273' | wc -c")"
must on target 'hcablk target unexport vol1 && dmsetup remove slow'
