#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: a disk that a program serves through ublk works like other disks, survives the kill of its program and of the target, follows the volume's size, and is removed.
# turn: 2
# takes: 150
# waits: yes
# skips: siw debug
# timeout: 1500

. "${0%/*}/../lib/lib.sh"

[ "$rdma" = rxe ] || skip "the library needs memory windows, which soft-iWARP does not have"
on c1 'modprobe ublk_drv' || skip "the kernel has no ublk"
must on c1 'modprobe rdma_ucm'

# volume: exports the drive without a write cache, so that a restarted target has lost nothing
volume() {
	must on target "modprobe dm_mod && echo 'write through' > /sys/block/$(on target "basename \$(readlink -f $drive)")/queue/write_cache &&
		echo '0 262144 linear $drive 0' | dmsetup create grows && dmsetup mknodes"
	export_volume vol1 /dev/mapper/grows --wwid=6f0c2b62-5f5e-4c0e-9d57-0b8f3e9b0a47 c1
}
# serve COMMAND…: starts a program that serves the disk
serve() {
	must on c1 'rm -f /tmp/ublk'
	ON_SECONDS=900 spawn "$1" c1 "hcablk-ublk $* > /tmp/ublk 2>&1 & echo \$! > /tmp/pid; wait \$!"
	must wait_until c1 60 'grep -q ^/dev/ublkb0 /tmp/ublk'
}
# load: starts to write, and to read the data back
load() {
	ON_SECONDS=900 spawn load c1 "fio --name=v --filename=/dev/ublkb0 --direct=1 --ioengine=libaio --rw=randrw --bsrange=4k-256k --size=$(few 24)M \
		--iodepth=16 --numjobs=2 --offset_increment=32M --verify=crc32c --verify_fatal=1 --rate=4m"
	must wait_until c1 60 "awk '{ exit !(\$5 > 40) }' /sys/block/ublkb0/stat"
}

# shown STATE: waits until `hcablk list` shows the disk in this state
shown() {
	wait_until c1 60 "hcablk list | grep -q '^ublkb0  */dev/ublkb0  *user  *$1 '"
}

# After another user of libublk has run, every local user may write in this directory.
must on c1 'mkdir -m 777 /run/ublksrvd && echo precious > /tmp/precious && for n in 0 1 2; do ln -s /tmp/precious /run/ublksrvd/000$n.json; done'
# untouched: checks the file to which a link there leads
untouched() {
	same "$1" precious "$(on c1 'cat /tmp/precious')"
}

volume
like "without systemd, connect reports what to do" "hcablk-ublk add --host-id .* $target_address vol1" "$(on c1 "hcablk connect --user $target_address vol1" 2>&1)"
like "a volume that does not exist makes no disk" "no volume of this name" "$(on c1 "hcablk-ublk add $target_address nosuch" 2>&1)"
like "an unknown option makes no disk" "no option" "$(on c1 "hcablk-ublk add -o size=1 $target_address vol1" 2>&1)"
refuse "refused commands leave nothing on the client" on c1 '[ -e /dev/ublkb0 ] || [ -e /run/hcablk/ublk/0.json ]'
serve add -o queues=9 "$target_address" vol1
untouched "adding a disk writes no file of libublk"
like "the program reports that the machine has fewer processors than queues" \
	"9 queues are asked for; the disk has $(on c1 'ls /sys/block/ublkb0/mq | wc -l')," "$(on c1 'cat /tmp/ublk')"
same "the disk has the volume's size" "$(on target 'blockdev --getsize64 /dev/mapper/grows')" "$(on c1 'blockdev --getsize64 /dev/ublkb0')"
same "the disk has a volatile cache" "write back" "$(on c1 'cat /sys/block/ublkb0/queue/write_cache')"
must on c1 'dd if=/dev/urandom of=/tmp/data bs=64k count=49 status=none && dd if=/tmp/data of=/dev/ublkb0 bs=64k seek=1 oflag=direct conv=fsync status=none'
same "the drive holds the written data" "$(on c1 'sha256sum < /tmp/data')" \
	"$(on target 'dd if=/dev/mapper/grows bs=64k skip=1 count=49 iflag=direct status=none | sha256sum')"
check "memory of every shape is written and read right" on c1 'hcablk-scatter /dev/ublkb0 random 77 16'
must on c1 'dd if=/dev/urandom of=/dev/ublkb0 bs=64k seek=200 count=1 oflag=direct status=none && blkdiscard -z -o 13107200 -l 65536 /dev/ublkb0'
same "zeroes are written to the drive" 0 "$(on target 'dd if=/dev/mapper/grows bs=64k skip=200 count=1 iflag=direct status=none | tr -d "\000" | wc -c')"
check "a file system is made and mounted" on c1 'modprobe ext4; mkdir -p /mnt/u && mkfs.ext4 -q -F /dev/ublkb0 64M && mount /dev/ublkb0 /mnt/u && cp /tmp/data /mnt/u/data && sync'
like "a disk in use is not removed" "in use" "$(on c1 'hcablk-ublk remove 0' 2>&1)"
check "the file system holds the copied file" on c1 'umount /mnt/u && mount /dev/ublkb0 /mnt/u && cmp /tmp/data /mnt/u/data && umount /mnt/u'

# The driver exists, and cannot be reached.
must on c1 'mv /dev/ublk-control /dev/unreached'
like "removing a disk without reaching the driver reports that, not a missing disk" "no answer from the ublk driver" "$(on c1 'hcablk-ublk remove --force 0' 2>&1)"
like "without reaching the driver the disk is listed as not known" "^/dev/ublkb0 vol1 not known" "$(on c1 'hcablk-ublk list' 2>&1)"
check "the disk is served when the driver is reached again" on c1 'mv /dev/unreached /dev/ublk-control && hcablk-ublk list | grep -q "^/dev/ublkb0 vol1 served"'
like "a disk with another mark is not removed" "another disk by now" "$(on c1 'hcablk-ublk remove --force --mark 1 0' 2>&1)"

load
must on c1 'kill -9 $(cat /tmp/pid)'
join add
check "the program is killed: the disk is left" wait_until c1 60 'hcablk-ublk list | grep -q "^/dev/ublkb0 vol1 left"'
check "the program is killed: requests wait" on c1 'pidof fio'
check "the killed program's disk is listed as left" shown left
like "another program cannot take the killed program's session" "session 1 or has reserved it" "$(on c1 "hcablk-ublk add -o session=1 $target_address vol1" 2>&1)"
must on c1 'rm /run/ublksrvd/0000.json && mkfifo /run/ublksrvd/0000.json'
serve recover 0
untouched "recovering a disk reads and writes no file of libublk"
check "another program recovers the disk: the written data is read back" join load
refuse "the kernel logged no error of the disk" on c1 'dmesg | grep -q "ublkb0.*error"'

load
must vm kill target
check "a disk without its target is listed as queueing" shown queueing
must vm start target
volume
check "the target was restarted: the written data is read back" join load

must on target "dmsetup suspend grows && printf '0 393216 linear $drive 0\n' | dmsetup load grows && dmsetup resume grows"
check "the disk grows with the volume" wait_until c1 60 "[ \$(blockdev --getsize64 /dev/ublkb0) = $((393216 * 512)) ]"
same "the grown disk is listed as served" "/dev/ublkb0 vol1 served" "$(on c1 'hcablk-ublk list')"
like "the grown disk is listed as live" "^ublkb0  */dev/ublkb0  *user  *live[, ]" "$(on c1 'hcablk list | tail -n 1')"
must on c1 'kill $(cat /tmp/pid)'
check "the program ends on a signal" join recover
check "the disk is removed with its program" wait_until c1 30 '[ ! -e /sys/block/ublkb0 ] && [ -z "$(hcablk-ublk list)" ]'
check "the program leaves nothing at the target" wait_until target 60 "$no_queue_pairs"
silent "the session of the removed disk is not reserved any more" on c1 'ls /run/hcablk/sessions | grep reserved || true'
must on c1 'rm -r /run/ublksrvd'

# A disk whose program was killed is removed without another program.
serve add "$target_address" vol1
must on c1 'dd if=/dev/ublkb0 of=/dev/null bs=4k count=1 iflag=direct && kill -9 $(cat /tmp/pid)'
join add
must wait_until c1 60 'hcablk-ublk list | grep -q "^/dev/ublkb0 vol1 left"'
must on target 'hcablk target unexport vol1 && modprobe null_blk nr_devices=0 && mkdir /sys/kernel/config/nullb/big &&
	cd /sys/kernel/config/nullb/big && echo 4096 > blocksize && echo 64 > size && echo 1 > memory_backed && echo 1 > power'
export_volume vol1 /dev/big --wwid=6f0c2b62-5f5e-4c0e-9d57-0b8f3e9b0a47 c1
like "a volume whose block size has changed is refused" "blocks of 512 bytes, and the volume has blocks of 4096" "$(on c1 'hcablk-ublk recover 0' 2>&1)"
check "the requests of the refused disk still wait" on c1 'hcablk-ublk list | grep -q "^/dev/ublkb0 vol1 left"'
check "a disk whose program was killed is removed, by its device" on c1 'hcablk disconnect ublkb0'
check "the removed disk is gone" wait_until c1 30 '[ ! -e /sys/block/ublkb0 ]'
like "a removed disk cannot be recovered" "not a disk of this program" "$(on c1 'hcablk-ublk recover 0' 2>&1)"
must on target 'hcablk target unexport vol1 && rmdir /sys/kernel/config/nullb/big'

# A forced removal does not wait for a target that was lost a moment ago, unnoticed.
export_volume vol1 /dev/mapper/grows --wwid=6f0c2b62-5f5e-4c0e-9d57-0b8f3e9b0a47 c1
serve add "$target_address" vol1
load
must vm kill target
check "a disk whose target was just lost is removed by force" on c1 'timeout 100 hcablk-ublk remove --force 0'
refuse "requests of the disk removed by force fail" join load
check "the program of the disk removed by force ends" join add
check "the disk removed by force is gone" on c1 '[ ! -e /sys/block/ublkb0 ]'
