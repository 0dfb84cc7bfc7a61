#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: one session carries several volumes, each attached, evicted, detached and unexported by itself while the others go on.
# turn: 20
# takes: 75
# skips: siw
# timeout: 480

. "${0%/*}/../lib/lib.sh"

[ "$rdma" = rxe ] || skip "the program's library speaks soft-RoCE only"

id=$(host_id c1)
begin_session() {
	must on c1 "rm -f /tmp/words /tmp/said; mkfifo /tmp/words; { while ! [ -e /tmp/stop ]; do sleep 1; done; } > /tmp/words &
		hcablk-attach $target_address 7744 $id $1 < /tmp/words > /tmp/said 2>&1 &
		until [ -s /tmp/said ]; do usleep 10000; done"
	same "a session begins without a volume" session "$(on c1 'cat /tmp/said')"
}
# ask WORDS: what the program says to that.
ask() {
	on c1 "n=\$(wc -l < /tmp/said); echo $* > /tmp/words; until [ \$(wc -l < /tmp/said) -gt \$n ]; do usleep 10000; done; tail -n 1 /tmp/said"
}
# on_drive DRIVE SECTOR: the text that is there.
on_drive() {
	on target "dd if=$1 bs=512 skip=$2 count=1 iflag=direct status=none | tr -d '\0'"
}
hosts_of() {
	on target "cut -d' ' -f1 $target/volumes/$1/clients"
}

# What is suspended counts no requests: the gate is.
must on target "modprobe dm_mod && printf '0 2000000 linear $drive 0\n' | dmsetup create gate && dmsetup mknodes &&
	echo '0 2000000 linear /dev/mapper/gate 0' | dmsetup create door && dmsetup mknodes"
# It does one request at a time, each in four seconds: the submitter of another one would wait for it, asleep.
must on target "modprobe null_blk nr_devices=0 && mkdir /sys/kernel/config/nullb/slow && cd /sys/kernel/config/nullb/slow &&
	echo 64 > size && echo 2 > irqmode && echo 4000000000 > completion_nsec && echo 1 > hw_queue_depth &&
	echo 1 > submit_queues && echo 1 > memory_backed && echo 1 > discard && echo 1 > power"
export_volume vol1 /dev/mapper/door c1
export_volume slow /dev/slow c1
export_volume vol2 "$drive2" c1
export_volume vol3 "$drive2" c2
size1=$((2000000 * 512)) size2=$(on target "blockdev --getsize64 $drive2")

begin_session 4711000a1
same "without a volume it gets no queue pair" "rejected 7" "$(ask queue)"
same "a volume is attached" "attached 0 capacity $size1" "$(ask attach vol1 4711000a2 1)"
same "and another one" "attached 1 capacity $size2" "$(ask attach vol2 4711000a3 1)"
same "not twice for one disk and epoch" "refused 6" "$(ask attach vol2 4711000a3 1)"
same "not one that is not there" "refused 3" "$(ask attach nothere 4711000a4 1)"
same "not one that the host may not use" "refused 4" "$(ask attach vol3 4711000a5 1)"
same "the queue pair is there" queue "$(ask queue)"
same "two queue pairs are all that there is for two volumes" 2 "$(queue_pairs target)"
same "the host uses the one volume" "$id" "$(hosts_of vol1)"
same "and the other one" "$id" "$(hosts_of vol2)"

same "a write to the one" "status 0" "$(ask write 0 8 first)"
same "one to the other" "status 0" "$(ask write 1 8 second)"
same "a durable one to the one, which may flush for it" "status 0" "$(ask fua 0 24 durable)"
same "is on its drive" durable "$(on_drive /dev/mapper/door 24)"
same "both are durable, says the one" "status 0" "$(ask flush 0)"
same "and the other" "status 0" "$(ask flush 1)"
same "the one reads what is its own" "status 0 first" "$(ask read 0 8)"
same "so does the other" "status 0 second" "$(ask read 1 8)"
same "the first drive has the one" first "$(on_drive /dev/mapper/door 8)"
same "the second drive has the other" second "$(on_drive "$drive2" 8)"
same "the reads of the one are counted for it" 1 "$(stat_of target $target/volumes/vol1 reads)"
same "and those of the other for that" "1 1 1" "$(for what in reads writes flushes; do stat_of target $target/volumes/vol2 $what; done | xargs)"
same "a handle that is no volume's is refused" "status 8 " "$(ask read 7 8)"
same "so is one that can be none" "status 1 " "$(ask read 300 8)"

must on target 'dmsetup suspend --nolockfs gate'
same "a request that a drive does not answer" begun "$(ask begin 0 8)"
must drive_holds read
same "the other volume answers meanwhile" "status 0 second" "$(ask read 1 8)"
same "and takes writes" "status 0" "$(ask write 1 16 third)"
same "and durable ones" "status 0" "$(ask fua 1 24 fourth)"
same "and zeroes" "status 0" "$(ask zeroes 1 8)"
same "which replace what was there" "status 0 " "$(ask read 1 8)"
same "the hung one is still waited for" "pending 1" "$(ask pending)"

same "the other one is watched" watching "$(ask watch 1 "$size2")"
check "the host is evicted from the other one" on target "hcablk target evict vol2 $id"
same "it is told" "gone 1" "$(ask gone)"
same "requests for it are refused" "status 8 " "$(ask read 1 8)"
same "it is not attached again" "refused 10" "$(ask attach vol2 4711000a3 2)"
same "the hung volume is still attached" "$id" "$(hosts_of vol1)"
must on target 'dmsetup resume gate'
same "its request is answered" "settled 0" "$(ask settle)"
same "and others are" "status 0 first" "$(ask read 0 8)"

must on target "hcablk target admit vol2 $id"
same "the host is admitted: the other one is attached again, by a new handle" "attached 2 capacity $size2" "$(ask attach vol2 4711000a3 2)"
same "it has what was written" "status 0 third" "$(ask read 2 16)"
same "by the old one it is not reached" "status 8 " "$(ask read 1 16)"
same "which is given back" "status 0" "$(ask detach 1)"
same "a drive that does one request at a time is attached" "attached 1 capacity $((64 * 1048576))" "$(ask attach slow 4711000a6 1)"
same "a request for it" begun "$(ask begin 1 8)"
same "another one, for which it has no room" begun "$(ask begin 1 800)"
same "a third one" begun "$(ask begin 1 1600)"
same "the volume beside it answers meanwhile" "status 0 first" "$(ask read 0 8)"
pending=$(ask pending)
less "the drive has not done the second one by then" 1 "${pending#pending }"
same "it does them all" "settled 0 0 0" "$(ask settle)"
same "its flush waits for no other volume" "status 0" "$(ask flush 1)"
chunks=$(stat_of target $target/volumes/slow chunks)
same "a read in chunks" begun "$(ask large 1 1024)"
same "and one behind it" begun "$(ask begin 1 8)"
same "the volume beside it still answers" "status 0 first" "$(ask read 0 8)"
same "the drive has had no room for the chunks, and does them all" "settled 0 0" "$(ask settle)"
same "in two chunks" $((chunks + 2)) "$(stat_of target $target/volumes/slow chunks)"
same "it discards" "status 0" "$(ask discard 1 8)"
same "it is detached" "status 0" "$(ask detach 1)"

check "the one is unexported, and its device closed" on target 'hcablk target unexport vol1 --force'
check "nobody has the device open" on target 'dmsetup remove door gate'
same "the other one goes on" "status 0 second" "$(ask read 2 8)"
same "the handle of the first reaches nothing" "status 8 " "$(ask read 0 8)"
same "the last one is detached" "status 0" "$(ask detach 2)"
same "which ends the session" disconnected "$(ask end)"
must on c1 'touch /tmp/stop'
check "nothing is left of it" wait_until target 30 "$no_queue_pairs"
silent "nobody uses the other volume any more" hosts_of vol2
