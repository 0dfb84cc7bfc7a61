#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: what is read again comes out of the target's cache without its drive being asked, and is what was written last by anybody.
# turn: 15
# takes: 80
# timeout: 480

. "${0%/*}/../lib/lib.sh"

volume=$target/volumes/vol1

# Sectors that were read from the drive.
drive_reads() {
	on target "awk '{ print \$3 }' /sys/block/\$(basename \$(readlink -f $drive))/stat"
}

# silent "DESCRIPTION" COMMAND…: it succeeds, and the drive is not read.
silent() {
	local what=$1 before
	shift
	before=$(drive_reads)
	check "$what" "$@"
	same "$what: the drive is not read" "$before" "$(drive_reads)"
}

# text BYTES WORD GUEST BLOCK [DD-OPTION…]: writes a block of this size full of the word; c1 has the same in /tmp/data.
text() {
	on "$3" "yes $2 | head -c $1 > /tmp/block && dd if=/tmp/block of=$device bs=$1 seek=$4 conv=notrunc oflag=direct" &&
		on c1 "yes $2 | head -c $1 | dd of=/tmp/data bs=$1 seek=$4 conv=notrunc"
}

export_volume vol1 "$drive" --cache-mib=4 c1 c2
connect c1 vol1
connect c2 vol1
right="dd if=$device bs=4k count=32 iflag=direct | cmp - /tmp/data"

must on c1 "dd if=/dev/urandom of=/tmp/data bs=4k count=32 && dd if=/tmp/data of=$device bs=64k oflag=direct"
# Whoever looked for partitions has read a few lines before.
before=$(drive_reads) misses=$(stat_of target $volume cache_misses)
check "what was written is read" on c1 "$right"
misses=$(($(stat_of target $volume cache_misses) - misses))
check "writes put nothing into the cache" [ $misses -ge 16 ]
same "what was not there is read from the drive" $((8 * misses)) $(($(drive_reads) - before))
hits=$(stat_of target $volume cache_hits) bytes=$(stat_of target $volume bytes_from_cache)
silent "it is read again" on c1 "$right"
same "each line was a hit" "32 131072" \
	"$(($(stat_of target $volume cache_hits) - hits)) $(($(stat_of target $volume bytes_from_cache) - bytes))"
silent "in large requests" on c1 "dd if=$device bs=64k count=2 iflag=direct | cmp - /tmp/data"
silent "in parts of lines" on c1 "dd if=$device bs=512 skip=3 count=10 iflag=direct | cmp -n 5120 -i 0:1536 - /tmp/data"

must text 4096 other c2 5
silent "what the other client has written" on c1 "$right"
must text 512 part c2 77
silent "a part of a line that it has written" on c1 "$right"
must text 65536 large c2 1
silent "much that it has written" on c1 "$right"
must on c2 "blkdiscard -f -z -o 8k -l 8k $device"
must on c1 "dd if=/dev/zero of=/tmp/data bs=4k count=2 seek=2 conv=notrunc"
check "zeroed blocks" on c1 "$right"
must on c2 "dd if=/dev/urandom of=/tmp/block bs=128k count=1 && dd if=/tmp/block of=$device bs=128k oflag=direct"
sum=$(on c2 'sha256sum < /tmp/block')
same "a write that is larger than what is kept drops what it covers" "$sum" \
	"$(on c1 "dd if=$device bs=4k count=32 iflag=direct | sha256sum")"

# One counts, the other looks on, in a line that is changed in the cache, dropped, and read into it again.
count=$(few 120)
write="yes \$n | head -c 4096 | dd of=$device bs=4k seek=300 iflag=fullblock conv=notrunc oflag=direct 2> /dev/null"
must on c1 "n=0; $write"
spawn counter c1 "for n in \$(seq $count); do $write || exit 1; done"
same "what a reader sees while another writes never goes back" "$count" "$(on c2 "last=0; until [ \$last = $count ]; do
	n=\$(dd if=$device bs=4k skip=300 count=1 iflag=direct 2> /dev/null | head -n 1)
	[ \$n -ge \$last ] || { echo \$n after \$last; exit 1; }
	last=\$n
done; echo \$last")"
check "the writer is done" join counter

# More than fits, from two hosts, each line read and written at the same time.
spawn other c2 "fio --output-format=terse --direct=1 --ioengine=libaio --name=o --filename=$device --rw=randread --bs=4k --iodepth=16 \
	--offset=1M --size=6M --io_size=$(few 4)M"
check "both clients at a time: data is right" fio c1 "--name=v --filename=$device --rw=randrw --bsrange=512-96k --blockalign=512 \
	--iodepth=32 --offset=1M --size=6M --io_size=$(few 4)M --verify=crc32c --verify_fatal=1"
check "and the other reads" join other
same "what is served is what is there" "$(on c1 "dd if=$device bs=64k count=112 iflag=direct | sha256sum")" \
	"$(on target "dd if=$drive bs=1M count=7 iflag=direct | sha256sum")"
check "lines had to go" [ "$(stat_of target $volume cache_evictions)" -gt 0 ]
same "no errors" 0 "$(stat_of target $volume errors)"
same "what crosses memory is counted" "$(stat_of target $volume ram_bytes)" \
	$(($(stat_of target $volume read_bytes) + $(stat_of target $volume written_bytes) + $(stat_of target $volume cache_copied_bytes)))
on c1 'rm -f /tmp/data'
on c2 'rm -f /tmp/block'
