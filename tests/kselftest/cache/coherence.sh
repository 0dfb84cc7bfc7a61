#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: a cache that could serve stale data is refused, and an accepted one survives drive errors, resizes and the target's own writes.
# turn: 9
# takes: 20
# timeout: 400

. "${0%/*}/../lib/lib.sh"

volumes=$target/volumes

# try VOLUME PATH MODE MIB: enables the volume through configfs; prints "enabled", or the reason and
# the error's number.
try() {
	on target "modprobe hcablk_target; mkdir -p $volumes/$1 && cd $volumes/$1 && echo $2 > path && echo $3 > mode && echo $4 > cache_mib &&
		if env echo 1 > enable; then echo 0 > enable; echo enabled; else cat error; fi 2>&1; cd / && rmdir $volumes/$1" | tail -n 1
}

like "a cache is refused in mode cached" "mode direct.*-22" "$(try v "$drive" cached 1)"
like "a cache is refused in mode mixed" "mode direct.*-22" "$(try v "$drive" mixed 1)"
like "a cache larger than half of the memory is refused" "half of the memory.*-12" "$(try v "$drive" direct 1000000)"
same "a cache that fits is accepted" enabled "$(try v "$drive" direct 8)"
must on target "mkdir $volumes/v"
like "a malformed cache size is refused" "Invalid argument" "$(on target "env echo 1m > $volumes/v/cache_mib" 2>&1)"
like "a cache size above the maximum is refused" "range|Result" "$(on target "env echo 1048577 > $volumes/v/cache_mib" 2>&1)"
must on target "rmdir $volumes/v"

must on target "hcablk target export plain $drive --no-port"
like "an exported drive gets no second volume with a cache" "another volume.*-16" "$(try v "$drive" direct 1)"
must on target 'hcablk target unexport plain'
must on target "hcablk target export alone $drive --cache-mib 1 --no-port"
like "a drive with a cache gets no second volume" "another volume.*-16" "$(try v "$drive" cached 0)"
like "the command reports why the second volume is refused" "another volume" "$(on target "hcablk target export v $drive --mode direct" 2>&1)"
like "the cache size cannot be changed while the volume is enabled" "busy" "$(on target "env echo 2 > $volumes/alone/cache_mib" 2>&1)"
same "another drive can be exported beside a cache" enabled "$(try v "$drive2" cached 0)"
must on target 'hcablk target unexport alone'

# A file is recognised by more than its path.
must on target "modprobe ext4; mkfs.ext4 -q -F $drive2 64M; mkdir -p /mnt/files && mount $drive2 /mnt/files &&
	truncate -s 16M /mnt/files/image && ln /mnt/files/image /mnt/files/other"
must on target "hcablk target export alone /mnt/files/image --cache-mib 1 --no-port"
like "a second volume of a cached file is refused under another name" "another volume.*-16" "$(try v /mnt/files/other direct 0)"
must on target 'hcablk target unexport alone'

# fill: puts the first 64 KiB into the cache, and the same bytes into c1's /tmp/data.
read_data="dd if=\$device bs=4k count=16 iflag=direct"
fill() {
	must on c1 "dd if=/dev/urandom of=/tmp/data bs=4k count=16 && dd if=/tmp/data of=$device bs=64k oflag=direct"
	must on c1 "device=$device; $read_data | cmp - /tmp/data && $read_data | cmp - /tmp/data"
}
# hits VOLUME: cache hits so far
hits() {
	stat_of target "$volumes/$1" cache_hits
}

export_volume file /mnt/files/image --cache-mib=1 c1
connect c1 file
fill
check "the cache of a file serves reads" [ "$(hits file)" -ge 16 ]
same "writes go through the cache to the file" "$(on c1 'sha256sum < /tmp/data')" \
	"$(on target 'dd if=/mnt/files/image bs=64k count=1 iflag=direct | sha256sum')"
must on target "yes new | head -c 4096 > /tmp/block && dd if=/tmp/block of=/mnt/files/image bs=4k seek=3 conv=notrunc"
same "a client reads what the target itself wrote to the file" new "$(on c1 "dd if=$device bs=4k skip=3 count=1 iflag=direct | head -n 1")"
disconnect c1 file
must on target 'hcablk target unexport file && umount /mnt/files && rm /tmp/block'

# The drive can be read, but its writes fail.
size=32768
must on target "modprobe -a dm_mod dm_flakey && printf '0 $size linear $drive2 0\n' | dmsetup create bad"
export_volume bad "/dev/$(on target 'dmsetup info -c --noheadings -o blkdevname bad')" --cache-mib=1 c1
connect c1 bad
fill
must on target "dmsetup suspend bad && printf '0 $size flakey $drive2 0 0 3600 1 error_writes\n' | dmsetup load bad && dmsetup resume bad"
refuse "a write to a drive that fails writes returns an error" on c1 "dd if=/dev/zero of=$device bs=4k count=3 oflag=direct conv=notrunc"
same "after a failed write the client reads the drive's data" "$(on target "dd if=$drive2 bs=4k count=16 iflag=direct | sha256sum")" \
	"$(on c1 "device=$device; $read_data | sha256sum")"
must on target "dmsetup suspend bad && printf '0 $size error\n' | dmsetup load bad && dmsetup resume bad"
before=$(hits bad)
check "cached lines can be read when the drive is dead" on c1 "dd if=$device bs=4k skip=8 count=8 iflag=direct of=/tmp/block &&
	dd if=/tmp/data bs=4k skip=8 count=8 | cmp - /tmp/block"
same "these reads are cache hits" 8 $(($(hits bad) - before))
refuse "a read that misses the cache fails when the drive is dead" on c1 "dd if=$device bs=4k skip=1000 count=1 iflag=direct"
must on target "dmsetup suspend bad && printf '0 $size linear $drive2 0\n' | dmsetup load bad && dmsetup resume bad"
check "a failed read leaves no line in the cache" on c1 "dd if=$device bs=4k skip=1000 count=1 iflag=direct of=/dev/null"
disconnect c1 bad
must on target 'hcablk target unexport bad && dmsetup remove bad'

# A drive that shrank and grew again may hold different data.
must on target 'modprobe loop max_loop=1 && truncate -s 16M /tmp/image && losetup /dev/loop0 /tmp/image'
export_volume loop /dev/loop0 --cache-mib=1 c1
connect c1 loop
fill
must on target 'truncate -s 8M /tmp/image && losetup -c /dev/loop0'
must wait_until c1 30 "[ \$(blockdev --getsize64 $device) = $((8 << 20)) ]"
before=$(hits loop)
check "the data is right after a resize" on c1 "device=$device; $read_data | cmp - /tmp/data"
same "a resize empties the cache" "$before" "$(hits loop)"
disconnect c1 loop
must on target 'hcablk target unexport loop && losetup -d /dev/loop0 && rm /tmp/image'
on c1 'rm -f /tmp/data /tmp/block'
