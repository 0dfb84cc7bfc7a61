#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: a program uses a volume from user space, without any of our modules on its host: memory of every shape, polled and with events.
# turn: 20
# takes: 110
# skips: siw
# timeout: 900

. "${0%/*}/../lib/lib.sh"

[ "$rdma" = rxe ] || skip "the library needs memory windows, which soft-iWARP does not have"

user() {
	on c1 "hcablk-user $target_address vol1 $*"
}
# served COUNTER…: prints counters of the target's volume
served() {
	stats_of target "$target/volumes/vol1" "$@"
}

must on c1 'modprobe rdma_ucm'
refuse "the client has loaded none of our modules" on c1 "grep -q '^hcablk' /proc/modules"
must on target "$(keep /run/reservations) && modprobe hcablk_target && env echo /run/reservations > $target/reservations"
export_volume vol1 "$drive" c1 c2

# Data that the program writes is on the drive, and the reverse.
like "the volume's size is the drive's" "size $(on target "blockdev --getsize64 $drive")" "$(on c1 "hcablk-user $target_address vol1 info")"
must on c1 'dd if=/dev/urandom of=/tmp/data bs=64k count=49 status=none'
sum=$(on c1 'sha256sum < /tmp/data')
check "a program writes" on c1 "hcablk-user $target_address vol1 write 8192 < /tmp/data"
same "the drive holds what the program wrote" "$sum" "$(on target "dd if=$drive bs=8k skip=1 count=392 iflag=direct status=none | sha256sum")"
same "the program reads its data back" "$sum" "$(on c1 "hcablk-user $target_address vol1 read 8192 $((49 << 16)) | sha256sum")"
same "the program reads its data back with events" "$sum" "$(on c1 "hcablk-user --event $target_address vol1 read 8192 $((49 << 16)) | sha256sum")"

# The kernel's driver on the other machine uses the same volume at the same time.
connect c2 vol1
same "the kernel's driver reads the program's data" "$sum" "$(on c2 "dd if=$device bs=8k skip=1 count=392 iflag=direct status=none | sha256sum")"
must on c2 "dd if=/dev/zero of=$device bs=8k seek=1 count=1 oflag=direct status=none"
same "the program reads the kernel driver's data" 0 "$(on c1 "hcablk-user $target_address vol1 read 8192 8192 | tr -d '\\000' | wc -c")"

# grew "DESCRIPTION" COUNTER BEFORE: checks that the target's counter has grown.
grew() {
	less "$1" "$3" "$(served "$2")"
}
read -rd '' eager inline immediates invalidated fetched < <(served eager_writes inline_writes immediates remote_invalidations rdma_reads)
check "data of every shape is right" user verify 1
grew "some writes used the eager ring" eager_writes "$eager"
grew "some writes went with their requests" inline_writes "$inline"
grew "some reads came with their responses" immediates "$immediates"
grew "the target invalidated windows" remote_invalidations "$invalidated"
grew "the target read through windows" rdma_reads "$fetched"
check "data is right over two queues with few requests each" user --queues=2 --queue-depth=4 verify 2
eager=$(served eager_writes)
check "data is right without the ring, and with windows instead of copies" user --eager-write=0 --small-read=0 verify 3
same "the ring was not used" "$eager" "$(served eager_writes)"
invalidated=$(served remote_invalidations)
check "data is right with windows that the client invalidates" user --remote-invalidate=0 --small-read=0 --eager-write=0 verify 4
same "the target has invalidated no windows" "$invalidated" "$(served remote_invalidations)"
for how in polled event; do
	counts=$(on c1 "hcablk-user $([ $how = polled ] || echo --event) $target_address vol1 allocations")
	printf '%s\n' "$counts" >&2
	same "neither requests nor synchronous calls allocate anything ($how)" 5 "$(grep -c '^0 for ' <<< "$counts")"
done
must on c2 "hcablk-pr $device register 0 22 && hcablk-pr $device reserve 22 1"
like "a write that another host's reservation forbids fails with that reason" "a reservation of another host forbids this" \
	"$(on c1 "head -c 4096 /dev/zero | hcablk-user $target_address vol1 write 0" 2>&1)"
same "the program reads a volume that another host has reserved for its writes" 4096 "$(on c1 "hcablk-user $target_address vol1 read 0 4096 | wc -c")"
must on c2 "hcablk-pr $device release 22 1"
check "the program writes when the reservation was released" on c1 "head -c 4096 /dev/zero | hcablk-user $target_address vol1 write 0"
must on c2 "hcablk-pr $device register 22 0"
same "the kernel driver's disk is still live" live "$(on c2 "cat $initiator/vol1/state")"

# A program that is killed leaves nothing at the target.
disconnect c2 vol1
spawn killed c1 "hcablk-user $target_address vol1 hold > /tmp/held & echo \$! > /tmp/pid; wait"
must wait_until c1 30 'grep -q open /tmp/held'
like "the target lists the client" "$(host_id c1)" "$(on target 'hcablk target list')"
must on c1 'kill -9 $(cat /tmp/pid)'
join killed
check "nothing of a killed program is left at the target" wait_until target 60 "$no_queue_pairs"
check "the next program opens the volume at once" user info

# The export ends under a program, which gets the reason.
must on c1 'rm /tmp/held'
spawn held c1 "hcablk-user --ctrl-loss-tmo=0 $target_address vol1 hold > /tmp/held 2>&1"
must wait_until c1 30 'grep -qs open /tmp/held'
must on target 'hcablk target unexport --force vol1'
check "a program whose volume is unexported ends in order" join held
like "the program reports why its session ended" "the target ends the export|the target closed the connection|no longer responds" "$(on c1 'cat /tmp/held')"
like "a volume that does not exist is refused, with the reason" "exports no volume of this name" "$(on c1 "hcablk-user $target_address vol1 info" 2>&1)"
refuse "the client has still loaded none of our modules" on c1 "grep -q '^hcablk' /proc/modules"

# With keys, on every queue pair.
use_keys c1
export_volume vol1 "$drive" c1
like "a volume that demands a proof is refused to a program without keys" "none to hosts that do not prove" "$(on c1 "hcablk-user $target_address vol1 info" 2>&1)"
check "both sides prove their identity" user --keys --queues=3 verify 5
# A new key is pending until the target has it: the program still uses the current one.
must on c1 'hcablk key generate host --rotate > /dev/null'
check "a pending key is not used" user --keys info
must on c1 'cp /etc/hcablk/keys/host.pending /etc/hcablk/keys/host'
like "another key is refused" "does not accept the proof" "$(on c1 "hcablk-user --keys $target_address vol1 info" 2>&1)"
