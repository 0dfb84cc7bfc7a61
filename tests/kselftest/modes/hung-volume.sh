#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: any number of requests that hang on one volume's drive do not hold up cached I/O of other volumes.
# turn: 20
# takes: 30
# timeout: 480

. "${0%/*}/../lib/lib.sh"

# How many requests of one volume its workqueue runs at a time. Without this bound the kernel runs 1024.
bound=256
# More requests than that hang at the same time.
jobs=4 each=350

# Counts the target's threads that are busy with requests of volumes.
busy='cat /proc/[0-9]*/comm 2> /dev/null | grep -c "+hcablk_io"'
# Lists the workqueues of volumes: each has a rescuer thread for when memory is short.
workqueues='cat /proc/[0-9]*/comm 2> /dev/null | sed -n "s/^kworker.R-hcablk_io_*//p" | sort | tr "\n" " "'

must on target 'hcablk target listen --id 1 --buffer-mib 64 --memory-mib 256'
must on target "modprobe -a dm_mod ext4 && mkfs.ext4 -q -F $drive 400M && mkdir -p /mnt/files && mount $drive /mnt/files &&
	dd if=/dev/urandom of=/mnt/files/image bs=1M count=64 conv=fsync 2> /dev/null &&
	echo 3 > /proc/sys/vm/drop_caches &&
	echo \"0 \$(blockdev --getsz $drive2) linear $drive2 0\" | dmsetup create hung && dmsetup mknodes"
export_volume hung "/dev/$(on target 'dmsetup info -c --noheadings -o blkdevname hung')" --mode=cached c1
export_volume well /mnt/files/image --mode=cached c2
same "each volume has a workqueue for its requests" "hung well " "$(on target "$workqueues")"
same "each volume has a workqueue for its queue pairs" "hung well " "$(on target "${workqueues//_io_/_soft_}")"
connect c2 well
well=$device
connect c1 hung --queues 2 --queue-depth 1024 --io-timeout 600

must on target 'dmsetup suspend --nolockfs hung'
# A few at a time: soft-RoCE uses the same kernel threads, which must be created first.
for ((n = 0; n < jobs; n++)); do
	ON_SECONDS=600 spawn hang$n c1 "fio --name=r --filename=$device --direct=1 --ioengine=libaio --rw=randread --bs=4k \
		--iodepth=$each --cpus_allowed=$((n % 2)) --offset=$((n * 100))M --size=100M --number_ios=$each"
	must wait_until target 40 "awk '\$1 == \"receives\" { exit !(\$2 >= $(((n + 1) * each))) }' $target/volumes/hung/stats"
done
same "no request waits for a transfer buffer" 0 "$(stat_of target $target/volumes/hung buffer_waits)"
must wait_until target 60 "[ \$($busy) -ge $bound ]"
pass "$((jobs * each)) requests hang, as many of them in the workqueue as its bound allows"

export ON_SECONDS=$((60 * slow))
check "the other volume is written while the drive hangs" on c2 "dd if=/dev/zero of=$well bs=64k seek=1000 count=16 oflag=direct"
check "the other volume is flushed while the drive hangs" on c2 "dd if=/dev/zero of=$well bs=4k seek=16000 count=1 oflag=direct conv=fsync"
same "uncached data of the other volume is read while the drive hangs" "$(on target "dd if=/mnt/files/image bs=1M count=32 iflag=direct 2> /dev/null | sha256sum")" \
	"$(on c2 "dd if=$well bs=1M count=32 iflag=direct 2> /dev/null | sha256sum")"
check "many requests of the other volume at a time succeed while the drive hangs" fio c2 "--name=v --filename=$well --rw=randrw --bs=16k --iodepth=32 --offset=32M \
	--size=$(few 8)M --verify=crc32c --verify_fatal=1"
less "the hung volume has no more threads than its bound" "$(on target "$busy")" $((bound + 64))
ON_SECONDS=120

must on target 'dmsetup resume hung'
for ((n = 0; n < jobs; n++)); do
	check "$each requests end when the drive continues" join hang$n
done
for volume in hung well; do
	same "$volume: no errors" 0 "$(stat_of target $target/volumes/$volume errors)"
done
disconnect c1 hung
disconnect c2 well
must on target 'hcablk target unexport hung'
same "a volume's workqueue ends with its export" "well " "$(on target "$workqueues")"
must on target 'hcablk target unexport well && umount /mnt/files && dmsetup remove hung'
