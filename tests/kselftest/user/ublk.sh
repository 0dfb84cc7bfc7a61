#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: a disk that a program serves by ublk is one as others are, goes on when the program was killed or the target has gone, follows the volume's size, and is removed.
# turn: 2
# takes: 150
# waits: yes
# skips: siw debug
# timeout: 1500

. "${0%/*}/../lib/lib.sh"

[ "$rdma" = rxe ] || skip "the library needs memory windows, which soft-iWARP does not have"
on c1 'modprobe ublk_drv' || skip "the kernel has no ublk"
must on c1 'modprobe rdma_ucm'

# volume: exports it without a cache, so that a target that starts again has forgotten nothing
volume() {
	must on target "modprobe dm_mod && echo 'write through' > /sys/block/$(on target "basename \$(readlink -f $drive)")/queue/write_cache &&
		echo '0 262144 linear $drive 0' | dmsetup create grows && dmsetup mknodes"
	export_volume vol1 /dev/mapper/grows --wwid=6f0c2b62-5f5e-4c0e-9d57-0b8f3e9b0a47 c1
}
# serve COMMAND…: a program serves the disk
serve() {
	must on c1 'rm -f /tmp/ublk'
	ON_SECONDS=900 spawn "$1" c1 "hcablk-ublk $* > /tmp/ublk 2>&1 & echo \$! > /tmp/pid; wait \$!"
	must wait_until c1 60 'grep -q ^/dev/ublkb0 /tmp/ublk'
}
# load: begins to write, and to read what was written
load() {
	ON_SECONDS=900 spawn load c1 "fio --name=v --filename=/dev/ublkb0 --direct=1 --ioengine=libaio --rw=randrw --bsrange=4k-256k --size=$(few 24)M \
		--iodepth=16 --numjobs=2 --offset_increment=32M --verify=crc32c --verify_fatal=1 --rate=4m"
	must wait_until c1 60 "awk '{ exit !(\$5 > 40) }' /sys/block/ublkb0/stat"
}

# shown STATE: `hcablk list` comes to show the disk so
shown() {
	wait_until c1 60 "hcablk list | grep -q '^ublkb0  */dev/ublkb0  *user  *$1 '"
}

# Where another program that uses libublk has run, every local user may write here.
must on c1 'mkdir -m 777 /run/ublksrvd && echo precious > /tmp/precious && for n in 0 1 2; do ln -s /tmp/precious /run/ublksrvd/000$n.json; done'
# untouched: what a link there leads to
untouched() {
	same "$1" precious "$(on c1 'cat /tmp/precious')"
}

volume
like "without systemd it is said what to do" "hcablk-ublk add --host-id .* $target_address vol1" "$(on c1 "hcablk connect --user $target_address vol1" 2>&1)"
like "a volume that is not there makes no disk" "no volume of this name" "$(on c1 "hcablk-ublk add $target_address nosuch" 2>&1)"
like "nor does an option that is none" "no option" "$(on c1 "hcablk-ublk add -o size=1 $target_address vol1" 2>&1)"
refuse "nothing is left of it" on c1 '[ -e /dev/ublkb0 ] || [ -e /run/hcablk/ublk/0.json ]'
serve add -o queues=9 "$target_address" vol1
untouched "no file of libublk's is written"
like "it is said that there are fewer processors than queues were asked for" \
	"9 queues are asked for; the disk has $(on c1 'ls /sys/block/ublkb0/mq | wc -l')," "$(on c1 'cat /tmp/ublk')"
same "the disk has the volume's size" "$(on target 'blockdev --getsize64 /dev/mapper/grows')" "$(on c1 'blockdev --getsize64 /dev/ublkb0')"
same "and a volatile cache" "write back" "$(on c1 'cat /sys/block/ublkb0/queue/write_cache')"
must on c1 'dd if=/dev/urandom of=/tmp/data bs=64k count=49 status=none && dd if=/tmp/data of=/dev/ublkb0 bs=64k seek=1 oflag=direct conv=fsync status=none'
same "what was written is on the drive" "$(on c1 'sha256sum < /tmp/data')" \
	"$(on target 'dd if=/dev/mapper/grows bs=64k skip=1 count=49 iflag=direct status=none | sha256sum')"
check "memory of every shape" on c1 'hcablk-scatter /dev/ublkb0 random 77 16'
must on c1 'dd if=/dev/urandom of=/dev/ublkb0 bs=64k seek=200 count=1 oflag=direct status=none && blkdiscard -z -o 13107200 -l 65536 /dev/ublkb0'
same "zeroes are written" 0 "$(on target 'dd if=/dev/mapper/grows bs=64k skip=200 count=1 iflag=direct status=none | tr -d "\000" | wc -c')"
check "a file system is made and mounted" on c1 'modprobe ext4; mkdir -p /mnt/u && mkfs.ext4 -q -F /dev/ublkb0 64M && mount /dev/ublkb0 /mnt/u && cp /tmp/data /mnt/u/data && sync'
like "a disk in use is not removed" "in use" "$(on c1 'hcablk-ublk remove 0' 2>&1)"
check "the file is what was copied" on c1 'umount /mnt/u && mount /dev/ublkb0 /mnt/u && cmp /tmp/data /mnt/u/data && umount /mnt/u'

# The driver is there, and is not reached.
must on c1 'mv /dev/ublk-control /dev/unreached'
like "a driver that cannot be asked does not say that a disk is gone" "the ublk driver cannot be asked" "$(on c1 'hcablk-ublk remove --force 0' 2>&1)"
like "nor is it listed as gone" "^/dev/ublkb0 vol1 not known" "$(on c1 'hcablk-ublk list' 2>&1)"
check "all is as it was" on c1 'mv /dev/unreached /dev/ublk-control && hcablk-ublk list | grep -q "^/dev/ublkb0 vol1 served"'
like "a disk with another mark is not removed" "another disk by now" "$(on c1 'hcablk-ublk remove --force --mark 1 0' 2>&1)"

load
must on c1 'kill -9 $(cat /tmp/pid)'
join add
check "the program is killed: the disk is left" wait_until c1 60 'hcablk-ublk list | grep -q "^/dev/ublkb0 vol1 left"'
check "and requests wait" on c1 'pidof fio'
check "which is listed" shown left
like "no other program gets its session" "session 1 or has reserved it" "$(on c1 "hcablk-ublk add -o session=1 $target_address vol1" 2>&1)"
must on c1 'rm /run/ublksrvd/0000.json && mkfifo /run/ublksrvd/0000.json'
serve recover 0
untouched "nor is one read or written when another program goes on"
check "another one goes on: what was written is read" join load
refuse "nobody saw an error" on c1 'dmesg | grep -q "ublkb0.*error"'

load
must vm kill target
check "without its target it is listed as waiting" shown queueing
must vm start target
volume
check "the target was away: what was written is read" join load

must on target "dmsetup suspend grows && printf '0 393216 linear $drive 0\n' | dmsetup load grows && dmsetup resume grows"
check "the disk grows with the volume" wait_until c1 60 "[ \$(blockdev --getsize64 /dev/ublkb0) = $((393216 * 512)) ]"
same "it is listed" "/dev/ublkb0 vol1 served" "$(on c1 'hcablk-ublk list')"
like "as live" "^ublkb0  */dev/ublkb0  *user  *live[, ]" "$(on c1 'hcablk list | tail -n 1')"
must on c1 'kill $(cat /tmp/pid)'
check "the program is told to end, and does" join recover
check "the disk is gone" wait_until c1 30 '[ ! -e /sys/block/ublkb0 ] && [ -z "$(hcablk-ublk list)" ]'
check "nothing is left at the target" wait_until target 60 "$no_queue_pairs"
silent "its session is not reserved any more" on c1 'ls /run/hcablk/sessions | grep reserved || true'
must on c1 'rm -r /run/ublksrvd'

# One whose program was killed is removed without another one.
serve add "$target_address" vol1
must on c1 'dd if=/dev/ublkb0 of=/dev/null bs=4k count=1 iflag=direct && kill -9 $(cat /tmp/pid)'
join add
must wait_until c1 60 'hcablk-ublk list | grep -q "^/dev/ublkb0 vol1 left"'
must on target 'hcablk target unexport vol1 && modprobe null_blk nr_devices=0 && mkdir /sys/kernel/config/nullb/big &&
	cd /sys/kernel/config/nullb/big && echo 4096 > blocksize && echo 64 > size && echo 1 > memory_backed && echo 1 > power'
export_volume vol1 /dev/big --wwid=6f0c2b62-5f5e-4c0e-9d57-0b8f3e9b0a47 c1
like "a volume that has other blocks by now is refused" "blocks of 512 bytes, and the volume has blocks of 4096" "$(on c1 'hcablk-ublk recover 0' 2>&1)"
check "its requests still wait" on c1 'hcablk-ublk list | grep -q "^/dev/ublkb0 vol1 left"'
check "a disk whose program was killed is removed, by its device" on c1 'hcablk disconnect ublkb0'
check "and is gone" wait_until c1 30 '[ ! -e /sys/block/ublkb0 ]'
like "it cannot be recovered then" "not a disk of this program" "$(on c1 'hcablk-ublk recover 0' 2>&1)"
must on target 'hcablk target unexport vol1 && rmdir /sys/kernel/config/nullb/big'

# A forced end does not wait for a target that has gone a moment before, and nobody has noticed.
export_volume vol1 /dev/mapper/grows --wwid=6f0c2b62-5f5e-4c0e-9d57-0b8f3e9b0a47 c1
serve add "$target_address" vol1
load
must vm kill target
check "a forced end of a disk whose target was just lost ends" on c1 'timeout 100 hcablk-ublk remove --force 0'
refuse "its requests have failed" join load
check "and its program ends" join add
check "the disk is gone by then" on c1 '[ ! -e /sys/block/ublkb0 ]'
