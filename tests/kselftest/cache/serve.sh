#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: the target serves repeated reads from its cache without reading the drive, and always returns the data written last by any client.
# turn: 15
# takes: 80
# timeout: 480

. "${0%/*}/../lib/lib.sh"

volume=$target/volumes/vol1

# Sectors read from the drive.
drive_reads() {
	on target "awk '{ print \$3 }' /sys/block/\$(basename \$(readlink -f $drive))/stat"
}

# without_drive_reads "DESCRIPTION" COMMAND…: the command succeeds without a read of the drive.
without_drive_reads() {
	local what=$1 before
	shift
	before=$(drive_reads)
	check "$what" "$@"
	same "$what: the drive is not read" "$before" "$(drive_reads)"
}

# text BYTES WORD GUEST BLOCK: fills a block of this size with the word on the disk, and the same block in c1's /tmp/data.
text() {
	on "$3" "yes $2 | head -c $1 > /tmp/block && dd if=/tmp/block of=$device bs=$1 seek=$4 conv=notrunc oflag=direct" &&
		on c1 "yes $2 | head -c $1 | dd of=/tmp/data bs=$1 seek=$4 conv=notrunc"
}

export_volume vol1 "$drive" --cache-mib=4 c1 c2
connect c1 vol1
connect c2 vol1
right="dd if=$device bs=4k count=32 iflag=direct | cmp - /tmp/data"

must on c1 "dd if=/dev/urandom of=/tmp/data bs=4k count=32 && dd if=/tmp/data of=$device bs=64k oflag=direct"
# The search for partitions has cached a few lines.
before=$(drive_reads) misses=$(stat_of target $volume cache_misses)
check "a client reads what it wrote" on c1 "$right"
misses=$(($(stat_of target $volume cache_misses) - misses))
check "writes put no lines into the cache" [ $misses -ge 16 ]
same "misses are read from the drive" $((8 * misses)) $(($(drive_reads) - before))
hits=$(stat_of target $volume cache_hits) bytes=$(stat_of target $volume bytes_from_cache)
without_drive_reads "a second read is served from the cache" on c1 "$right"
same "each line of the second read was a hit" "32 131072" \
	"$(($(stat_of target $volume cache_hits) - hits)) $(($(stat_of target $volume bytes_from_cache) - bytes))"
without_drive_reads "large requests are served from the cache" on c1 "dd if=$device bs=64k count=2 iflag=direct | cmp - /tmp/data"
without_drive_reads "parts of lines are served from the cache" on c1 "dd if=$device bs=512 skip=3 count=10 iflag=direct | cmp -n 5120 -i 0:1536 - /tmp/data"

must text 4096 other c2 5
without_drive_reads "a block that the other client wrote is served from the cache" on c1 "$right"
must text 512 part c2 77
without_drive_reads "a part of a line that the other client wrote is served from the cache" on c1 "$right"
must text 65536 large c2 1
without_drive_reads "64 KiB that the other client wrote are served from the cache" on c1 "$right"
must on c2 "blkdiscard -f -z -o 8k -l 8k $device"
must on c1 "dd if=/dev/zero of=/tmp/data bs=4k count=2 seek=2 conv=notrunc"
check "blocks that the other client zeroed read as zeroes" on c1 "$right"
must on c2 "dd if=/dev/urandom of=/tmp/block bs=128k count=1 && dd if=/tmp/block of=$device bs=128k oflag=direct"
sum=$(on c2 'sha256sum < /tmp/block')
same "a write larger than the cache accepts drops the lines that it covers" "$sum" \
	"$(on c1 "dd if=$device bs=4k count=32 iflag=direct | sha256sum")"

# One client writes numbers into one line, which is changed in the cache, dropped and read again; the other watches.
count=$(few 120)
write="yes \$n | head -c 4096 | dd of=$device bs=4k seek=300 iflag=fullblock conv=notrunc oflag=direct 2> /dev/null"
must on c1 "n=0; $write"
spawn counter c1 "for n in \$(seq $count); do $write || exit 1; done"
same "a reader never sees an older number after a newer one" "$count" "$(on c2 "last=0; until [ \$last = $count ]; do
	n=\$(dd if=$device bs=4k skip=300 count=1 iflag=direct 2> /dev/null | head -n 1)
	[ \$n -ge \$last ] || { echo \$n after \$last; exit 1; }
	last=\$n
done; echo \$last")"
check "the writer of numbers ends" join counter

# More data than the cache holds, from two hosts, each line read and written at the same time.
spawn other c2 "fio --output-format=terse --direct=1 --ioengine=libaio --name=o --filename=$device --rw=randread --bs=4k --iodepth=16 \
	--offset=1M --size=6M --io_size=$(few 4)M"
check "fio verifies the data of one client while the other reads" fio c1 "--name=v --filename=$device --rw=randrw --bsrange=512-96k --blockalign=512 \
	--iodepth=32 --offset=1M --size=6M --io_size=$(few 4)M --verify=crc32c --verify_fatal=1"
check "the other client reads without an error" join other
same "the client reads what the drive holds" "$(on c1 "dd if=$device bs=64k count=112 iflag=direct | sha256sum")" \
	"$(on target "dd if=$drive bs=1M count=7 iflag=direct | sha256sum")"
check "the cache has evicted lines" [ "$(stat_of target $volume cache_evictions)" -gt 0 ]
same "the volume has no errors" 0 "$(stat_of target $volume errors)"
same "the bytes in RAM are those read, written and copied" "$(stat_of target $volume ram_bytes)" \
	$(($(stat_of target $volume read_bytes) + $(stat_of target $volume written_bytes) + $(stat_of target $volume cache_copied_bytes)))
on c1 'rm -f /tmp/data'
on c2 'rm -f /tmp/block'
