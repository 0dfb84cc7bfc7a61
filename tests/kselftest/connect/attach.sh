#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: one session carries several volumes, each attached, evicted, detached and unexported without an effect on the others.
# turn: 20
# takes: 75
# skips: siw
# timeout: 480

. "${0%/*}/../lib/lib.sh"

[ "$rdma" = rxe ] || skip "the program's library speaks soft-RoCE only"

id=$(host_id c1)
# begin_session SESSION [alone]
begin_session() {
	must on c1 "rm -f /tmp/words /tmp/said /tmp/stop; mkfifo /tmp/words; { while ! [ -e /tmp/stop ]; do sleep 1; done; } > /tmp/words &
		hcablk-attach $target_address 7744 $id $* < /tmp/words > /tmp/said 2>&1 &
		until [ -s /tmp/said ]; do usleep 10000; done"
	same "a session begins without a volume" session "$(on c1 'cat /tmp/said')"
}
# ask WORDS: sends a command to the program, and prints its answer.
ask() {
	on c1 "n=\$(wc -l < /tmp/said); echo $* > /tmp/words; until [ \$(wc -l < /tmp/said) -gt \$n ]; do usleep 10000; done; tail -n 1 /tmp/said"
}
# on_drive DRIVE SECTOR: prints the text in the sector.
on_drive() {
	on target "dd if=$1 bs=512 skip=$2 count=1 iflag=direct status=none | tr -d '\0'"
}
hosts_of() {
	on target "cut -d' ' -f1 $target/volumes/$1/clients"
}

# Device-mapper counts no requests of a suspended device; the gate above it does.
must on target "modprobe dm_mod && printf '0 2000000 linear $drive 0\n' | dmsetup create gate && dmsetup mknodes &&
	echo '0 2000000 linear /dev/mapper/gate 0' | dmsetup create door && dmsetup mknodes"
# One request at a time, each in four seconds: the submitter of a second one would sleep until the first ends.
must on target "modprobe null_blk nr_devices=0 && mkdir /sys/kernel/config/nullb/slow && cd /sys/kernel/config/nullb/slow &&
	echo 64 > size && echo 2 > irqmode && echo 4000000000 > completion_nsec && echo 1 > hw_queue_depth &&
	echo 1 > submit_queues && echo 1 > memory_backed && echo 1 > discard && echo 1 > power"
export_volume vol1 /dev/mapper/door c1
export_volume slow /dev/slow c1
export_volume vol2 "$drive2" c1
export_volume vol3 "$drive2" c2
size1=$((2000000 * 512)) size2=$(on target "blockdev --getsize64 $drive2")

begin_session 4711000a1
same "a session without a volume gets no queue pair" "rejected 7" "$(ask queue)"
same "the first volume is attached" "attached 0 capacity $size1" "$(ask attach vol1 4711000a2 1)"
same "the second volume is attached" "attached 1 capacity $size2" "$(ask attach vol2 4711000a3 1)"
same "a second attach with the same disk and epoch is refused" "refused 6" "$(ask attach vol2 4711000a3 1)"
same "an attach of a volume that does not exist is refused" "refused 3" "$(ask attach nothere 4711000a4 1)"
same "an attach of a volume that the host may not use is refused" "refused 4" "$(ask attach vol3 4711000a5 1)"
same "the session gets a queue pair" queue "$(ask queue)"
same "the target has two queue pairs for the two volumes" 2 "$(queue_pairs target)"
same "the host uses the first volume" "$id" "$(hosts_of vol1)"
same "the host uses the second volume" "$id" "$(hosts_of vol2)"

same "the first volume is written" "status 0" "$(ask write 0 8 first)"
same "the second volume is written" "status 0" "$(ask write 1 8 second)"
same "a write with FUA to the first volume, which may need a flush, succeeds" "status 0" "$(ask fua 0 24 durable)"
same "the first drive has the data of the write with FUA" durable "$(on_drive /dev/mapper/door 24)"
same "the first volume is flushed" "status 0" "$(ask flush 0)"
same "the second volume is flushed" "status 0" "$(ask flush 1)"
same "a read of the first volume returns its data" "status 0 first" "$(ask read 0 8)"
same "a read of the second volume returns its data" "status 0 second" "$(ask read 1 8)"
same "the first drive has the first volume's data" first "$(on_drive /dev/mapper/door 8)"
same "the second drive has the second volume's data" second "$(on_drive "$drive2" 8)"
same "the first volume counts its read" 1 "$(stat_of target $target/volumes/vol1 reads)"
same "the second volume counts its read, write and flush" "1 1 1" "$(for what in reads writes flushes; do stat_of target $target/volumes/vol2 $what; done | xargs)"
same "a request with an unused handle is refused" "status 8 " "$(ask read 7 8)"
same "a request with a handle above the maximum is refused" "status 1 " "$(ask read 300 8)"

must on target 'dmsetup suspend --nolockfs gate'
same "a read of a hung drive is sent" begun "$(ask begin 0 8)"
must drive_holds read
same "a read of the second volume is answered while the other drive hangs" "status 0 second" "$(ask read 1 8)"
same "a write to the second volume is answered while the other drive hangs" "status 0" "$(ask write 1 16 third)"
same "a write with FUA to the second volume is answered while the other drive hangs" "status 0" "$(ask fua 1 24 fourth)"
same "zeroes are written to the second volume while the other drive hangs" "status 0" "$(ask zeroes 1 8)"
same "the zeroes have replaced the second volume's data" "status 0 " "$(ask read 1 8)"
same "the read of the hung drive is still pending" "pending 1" "$(ask pending)"

same "the session watches the second volume" watching "$(ask watch 1 "$size2")"
check "the host is evicted from the second volume" on target "hcablk target evict vol2 $id"
same "the session is notified of the eviction" "gone 1" "$(ask gone)"
same "requests for the second volume are refused" "status 8 " "$(ask read 1 8)"
same "the evicted host cannot attach the second volume" "refused 10" "$(ask attach vol2 4711000a3 2)"
same "the hung volume is still attached" "$id" "$(hosts_of vol1)"
must on target 'dmsetup resume gate'
same "the read of the hung drive is answered after the hang" "settled 0" "$(ask settle)"
same "the first volume answers further reads" "status 0 first" "$(ask read 0 8)"

must on target "hcablk target admit vol2 $id"
same "the admitted host attaches the second volume again, with a new handle" "attached 2 capacity $size2" "$(ask attach vol2 4711000a3 2)"
same "the second volume has the data written before" "status 0 third" "$(ask read 2 16)"
same "the old handle is refused" "status 8 " "$(ask read 1 16)"
same "the old handle is detached" "status 0" "$(ask detach 1)"
same "a drive that does one request at a time is attached" "attached 1 capacity $((64 * 1048576))" "$(ask attach slow 4711000a6 1)"
same "a first read of the slow drive is sent" begun "$(ask begin 1 8)"
same "a second read of the slow drive is sent" begun "$(ask begin 1 800)"
same "a third read of the slow drive is sent" begun "$(ask begin 1 1600)"
same "a read of the first volume is answered while the slow drive works" "status 0 first" "$(ask read 0 8)"
pending=$(ask pending)
less "the slow drive has not answered its second read by then" 1 "${pending#pending }"
same "the slow drive answers its three reads" "settled 0 0 0" "$(ask settle)"
same "a flush of the slow volume does not wait for the other volume" "status 0" "$(ask flush 1)"
chunks=$(stat_of target $target/volumes/slow chunks)
same "a read in chunks of the slow drive is sent" begun "$(ask large 1 1024)"
same "a small read of the slow drive is sent after the read in chunks" begun "$(ask begin 1 8)"
same "a read of the first volume is answered while the chunks wait" "status 0 first" "$(ask read 0 8)"
same "the slow drive answers the read in chunks and the small read" "settled 0 0" "$(ask settle)"
same "the target has read two chunks" $((chunks + 2)) "$(stat_of target $target/volumes/slow chunks)"
same "the slow drive discards" "status 0" "$(ask discard 1 8)"
same "the slow volume is detached" "status 0" "$(ask detach 1)"

check "the first volume is unexported" on target 'hcablk target unexport vol1 --force'
check "no process has the device open after the unexport" on target 'dmsetup remove door gate'
same "the second volume still answers" "status 0 third" "$(ask read 2 16)"
same "the handle of the unexported volume is refused" "status 8 " "$(ask read 0 8)"
same "the last volume is detached" "status 0" "$(ask detach 2)"
same "the session ends" disconnected "$(ask end)"
must on c1 'touch /tmp/stop'
check "the target has no queue pair left" wait_until target 30 "$no_queue_pairs"
silent "the second volume has no client any more" hosts_of vol2

begin_session 4711000b1 alone
same "a session for one volume attaches one" "attached 0 capacity $size2" "$(ask attach vol2 4711000b2 1)"
same "a session for one volume does not attach a second one" "refused 5" "$(ask attach slow 4711000b3 1)"
same "a session for one volume gets a queue pair" queue "$(ask queue)"
same "a session for one volume reads its volume" "status 0 third" "$(ask read 0 16)"
same "a session for one volume has no other handle than 0" "status 1 " "$(ask read 1 8)"
less "the volume counts the messages of a session for one volume" 0 "$(stat_of target $target/volumes/vol2 receives)"
same "the volume of a session for one volume is detached" "status 0" "$(ask detach 0)"
same "a session for one volume ends with its volume" disconnected "$(ask end)"
must on c1 'touch /tmp/stop'
check "the target has no queue pair left after a session for one volume" wait_until target 30 "$no_queue_pairs"
