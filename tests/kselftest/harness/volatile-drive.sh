#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: the volatile drive keeps what was flushed or written with FUA when the target's machine is killed, and loses everything else.
# turn: 14
# takes: 30
# guests: target
# skips: debug

. "${0%/*}/../lib/lib.sh"

# put WORD BLOCK [DD-OPTION…]: fills a block of 4 KiB with the word, bypassing the page cache.
put() {
	local word=$1 block=$2
	shift 2
	must on target "yes $word | dd of=$volatile_drive bs=4k count=1 seek=$block iflag=fullblock oflag=direct $*"
}

# word_of BLOCK: prints the word of the block on the drive, not in the page cache.
word_of() {
	on target "dd if=$volatile_drive bs=4k count=1 skip=$1 iflag=direct | uniq"
}

add_volatile_drive
same "the drive has a volatile write cache and FUA" "write back 1" \
	"$(on target "cd /sys/block/\$(readlink $volatile_drive)/queue && echo \$(cat write_cache fua)")"
same "a new drive is empty" "$(head -c 1M /dev/zero | sha256sum)" \
	"$(on target "dd if=$volatile_drive bs=64k count=16 iflag=direct | sha256sum")"

for block in 1 2 3 4; do
	put old "$block" conv=fsync
done
# A flush or a FUA write saves everything written before it: the blocks that must be lost are written last.
put new 1 conv=fsync
put new 2 oflag=dsync
# The kernel follows dd's dsync writes with a flush. fio sends a SCSI command with the FUA bit, and no flush after it.
must on target "fio --name=fua --filename=$volatile_drive --ioengine=sg --writefua=1 --rw=write --bs=4k --size=4k --offset=12k \
	--buffer_pattern=0x6e65770a --minimal" # "new\n"
put new 4
put new 5
for block in 1 2 3 4 5; do
	same "block $block reads as written" new "$(word_of $block)"
done

must vm kill target
must vm start target
same "a flushed write survives the loss of power" new "$(word_of 1)"
same "a synchronous write survives the loss of power" new "$(word_of 2)"
same "a FUA write survives the loss of power" new "$(word_of 3)"
same "a write that was not flushed is lost: the block has its old data" old "$(word_of 4)"
same "a write to an empty block that was not flushed is lost" "$(head -c 4k /dev/zero | sha256sum)" \
	"$(on target "dd if=$volatile_drive bs=4k count=1 skip=5 iflag=direct | sha256sum")"

put new 4
must vm kill target
must vm start target
same "a second loss of power loses the cache again" old "$(word_of 4)"
same "the FUA write survives the second loss of power" new "$(word_of 3)"
