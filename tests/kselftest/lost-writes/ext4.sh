#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: when a crash of the target loses acknowledged writes of two files on ext4, every fsync of every file fails until the file system is unmounted.
# turn: 14
# takes: 55
# guests: target c1
# skips: debug
# timeout: 480
# expect-log: (EXT4-fs|JBD2|Buffer I/O|Aborting journal).*

. "${0%/*}/../lib/lib.sh"
. "${0%/*}/../lib/lost.sh"

# put WORD FILE: overwrites the file in place with the word of seven letters, bypassing the page cache.
put() {
	must on c1 "yes $1 | dd of=/mnt/a/$2 bs=16k count=1 iflag=fullblock oflag=direct conv=notrunc status=none"
}
# word_of FILE: prints the file's word on the volume, not in a page cache.
word_of() {
	on c1 "dd if=/mnt/a/$1 bs=16k count=1 iflag=direct status=none | uniq"
}
# on_drive WORD…: succeeds if the target's drive has one of the words
on_drive() {
	on target "dd if=$volatile_drive bs=1M count=32 iflag=direct status=none | grep -aqx ${*/#/-e }"
}

add_volatile_drive
export_volume vol1 "$volatile_drive" c1
connect c1 vol1 --ctrl-loss-tmo 600
# Only the test writes and flushes: no file times, and no commit of the journal.
must on c1 "modprobe ext4; mkdir -p /mnt/a
	mkfs.ext4 -q -F -E lazy_itable_init=0,lazy_journal_init=0 $device 32M &&
	mount -t ext4 -o noatime,lazytime,commit=3600 $device /mnt/a"
for file in one two six; do
	put "old-$file" $file
done
must on c1 'sync'
for file in one two six; do
	hold $file c1 w /mnt/a/$file
	same "fsync of $file succeeds before the crash" "done" "$(synced $file)"
done
put new-one one
put new-two two
same "both files read as written" "new-one new-two" "$(word_of one) $(word_of two)"
check "the target's drive has the written data" on_drive new-two

must vm kill target
must state_is c1 vol1 queueing
must vm start target
export_volume vol1 "$volatile_drive" c1
must state_is c1 vol1 live
refuse "the target's drive has lost the writes of both files" on_drive new-one new-two
same "all files have their old data" "old-one old-two old-six" "$(word_of one) $(word_of two) $(word_of six)"
same "the disk has lost writes" 1 "$(lost c1 vol1)"
for round in 1 2 3; do
	for file in one two six; do
		same "round $round: fsync fails through the open descriptor of $file" "$eio" "$(synced $file)"
	done
	same "round $round: fsync fails through a new descriptor" "$eio" "$(flush c1 /mnt/a/two)"
done
# The disk returns the errors: the file system has not noticed.
like "the file system is not read-only" ' /mnt/a ext4 rw,' "$(on c1 'grep /mnt/a /proc/mounts')"
same "the disk still has lost writes" 1 "$(lost c1 vol1)"

for file in one two six; do
	release $file
done
same "the disk still has lost writes after the files are closed" 1 "$(lost c1 vol1)"
must on c1 'umount /mnt/a'
same "the unmount ends the loss" 0 "$(lost c1 vol1)"
check "e2fsck finds the file system sound, or repairs it" on c1 "e2fsck -fy $device; [ \$? -le 1 ]"
must on c1 "mount -t ext4 $device /mnt/a"
put end-one one
same "fsync succeeds after the unmount" "done" "$(flush c1 /mnt/a/one)"
must on c1 'umount /mnt/a'
check "the target's drive has the data written after the loss" on_drive end-one
disconnect c1 vol1
