#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: the volatile drive keeps what was flushed or written with FUA when the target's machine is killed, and loses everything else.
# turn: 14
# takes: 30
# guests: target
# skips: debug

. "${0%/*}/../lib/lib.sh"

# put WORD BLOCK [DD-OPTION…]: writes a block of 4 KiB that is full of the word, past the page cache.
put() {
	local word=$1 block=$2
	shift 2
	must on target "yes $word | dd of=$volatile_drive bs=4k count=1 seek=$block iflag=fullblock oflag=direct $*"
}

# word_of BLOCK: what the drive, not the page cache, has there.
word_of() {
	on target "dd if=$volatile_drive bs=4k count=1 skip=$1 iflag=direct | uniq"
}

add_volatile_drive
same "the drive has a volatile write cache, and takes FUA" "write back 1" \
	"$(on target "cd /sys/block/\$(readlink $volatile_drive)/queue && echo \$(cat write_cache fua)")"
same "it is empty at first" "$(head -c 1M /dev/zero | sha256sum)" \
	"$(on target "dd if=$volatile_drive bs=64k count=16 iflag=direct | sha256sum")"

for block in 1 2 3 4; do
	put old "$block" conv=fsync
done
# A flush, or a write with FUA, saves everything written before it: the blocks to be lost are written last.
put new 1 conv=fsync
put new 2 oflag=dsync
# After a write by dd's dsync the kernel flushes as well. fio sends a SCSI command with the FUA bit, and no flush after it.
must on target "fio --name=fua --filename=$volatile_drive --ioengine=sg --writefua=1 --rw=write --bs=4k --size=4k --offset=12k \
	--buffer_pattern=0x6e65770a --minimal" # "new\n"
put new 4
put new 5
for block in 1 2 3 4 5; do
	same "what was written is read back: block $block" new "$(word_of $block)"
done

must vm kill target
must vm start target
same "what was followed by a flush outlives the power" new "$(word_of 1)"
same "so does a synchronous write" new "$(word_of 2)"
same "so does a write with FUA" new "$(word_of 3)"
same "what was not flushed is lost: the block is as it was" old "$(word_of 4)"
same "also where the drive was empty" "$(head -c 4k /dev/zero | sha256sum)" \
	"$(on target "dd if=$volatile_drive bs=4k count=1 skip=5 iflag=direct | sha256sum")"

put new 4
must vm kill target
must vm start target
same "a drive that has lost its cache loses it again" old "$(word_of 4)"
same "and keeps the rest" new "$(word_of 3)"
