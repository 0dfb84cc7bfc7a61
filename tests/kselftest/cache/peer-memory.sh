#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: a cache whose lines are a PCI device's memory is filled and read without RAM, is right, and does without when that is taken away.
# turn: 14
# takes: 80
# guests: target c1
# timeout: 480

. "${0%/*}/../lib/lib.sh"
. "${0%/*}/../lib/p2p.sh"

volume=$target/volumes/p

count() {
	stat_of target "$volume" "$1"
}

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

available() {
	on target "cat $(of "$card")/p2pmem/available"
}

verify="--rw=randrw --bsrange=512-96k --blockalign=512 --verify=crc32c --verify_fatal=1"
right="dd if=\$device bs=4k count=32 iflag=direct | cmp - /tmp/data"

lend "$card"
all=$(available)
for how in $ways; do
	must on target "modprobe hcablk_target p2p_virtual=$(virtual "$how")"
	export_volume p "$drive" --mode=p2p --provider="$card" --cache-mib=4 c1
	same "$how: the lines are the card's" $((all - (4 << 20))) "$(available)"
	# By one queue each request finds that the send of the last one's answer has completed, and its lines are free.
	connect c1 p --queues=1
	like "$how: so are transfer buffers" "^$(host_id c1) [0-9a-f]{16} 0 $card [0-9]+ $how" "$(on target "sort $volume/peers")"
	must vm trace target 'pci_nvme_map_addr*'
	must on c1 "dd if=/dev/urandom of=/tmp/data bs=4k count=32 && dd if=/tmp/data of=$device bs=64k oflag=direct"
	check "$how: what was written is read" on c1 "device=$device; $right"
	hits=$(count cache_hits) bytes=$(count cache_peer_bytes)
	silent "$how: it is read again" on c1 "device=$device; $right"
	same "$how: each line was a hit, in the card" "32 131072" \
		"$(($(count cache_hits) - hits)) $(($(count cache_peer_bytes) - bytes))"
	silent "$how: in large requests" on c1 "dd if=$device bs=64k count=2 iflag=direct | cmp - /tmp/data"
	silent "$how: in parts of lines" on c1 "dd if=$device bs=512 skip=3 count=10 iflag=direct | cmp -n 5120 -i 0:1536 - /tmp/data"
	# Of these lines one is read from the drive, and kept; it was changed where only peer memory has it if the HCA is direct.
	must on c1 "yes part | head -c 512 > /tmp/block && dd if=/tmp/block of=$device bs=512 seek=77 conv=notrunc oflag=direct &&
		dd if=/tmp/block of=/tmp/data bs=512 seek=77 conv=notrunc"
	case $how in
	bounce) silent "$how: a part of a line that was written" on c1 "device=$device; $right" ;;
	direct)
		check "$how: a part of a line that was written" on c1 "device=$device; $right"
		silent "$how: its line is kept again" on c1 "device=$device; $right"
		;;
	esac
	must on c1 "dd if=/dev/urandom of=/tmp/block bs=64k count=1 && dd if=/tmp/block of=$device bs=64k seek=8 oflag=direct &&
		dd if=$device of=/dev/null bs=4k skip=131 count=1 iflag=direct"
	check "$how: a read of which one line is there" on c1 "dd if=$device bs=64k skip=8 count=1 iflag=direct | cmp - /tmp/block"
	silent "$how: after that all are" on c1 "dd if=$device bs=64k skip=8 count=1 iflag=direct | cmp - /tmp/block"
	must on c1 "dd if=$device of=/dev/null bs=1k skip=4099 count=1 iflag=direct"

	reconnect p
	# More than fits, each line read and written at the same time.
	check "$how: many requests at a time" fio c1 "--name=v --filename=$device $verify --iodepth=16 --offset=1M --size=6M \
		--io_size=$(few 4)M"
	trace=$HCABLK_LOGS/cache-$how.trace
	traced target 'pci_nvme_map_addr*' > "$trace" || die "QEMU's trace"
	check "$how: QEMU saw the drive's data go to the card's memory, and nowhere else" only_in_card "$card" "$trace"
	same "$how: what is served is what is there" "$(on c1 "dd if=$device bs=64k count=112 iflag=direct | sha256sum")" \
		"$(on target "dd if=$drive bs=1M count=7 iflag=direct | sha256sum")"
	less "$how: lines had to go" 0 "$(count cache_evictions)"
	same "$how: no errors, nothing by RAM" "0 0 0" "$(count errors) $(count p2p_fallbacks) $(count cache_fallbacks)"
	same "$how: all hits were in the card" "$(count bytes_from_cache)" "$(count cache_peer_bytes)"
	moved=$(($(count read_bytes) + $(count written_bytes)))
	same "$how: the drive was asked for all but the hits" $((moved - $(count bytes_from_cache))) "$(count p2p_bytes)"
	case $how in
	bounce) same "$how: every byte was copied once, by RAM" "$moved $moved $moved" \
		"$(count p2p_bounce_bytes) $(count copied_bytes) $(count ram_bytes)" ;;
	direct) same "$how: none was copied, or in RAM" "0 0 0 0" \
		"$(count p2p_bounce_bytes) $(count copied_bytes) $(count cache_copied_bytes) $(count ram_bytes)" ;;
	esac

	# Taken away under I/O.
	spawn load c1 "fio --output-format=terse --name=v --filename=$device --direct=1 --ioengine=libaio $verify \
		--iodepth=16 --offset=1M --size=6M --loops=2"
	before=$(count cache_peer_bytes)
	must wait_until target 60 "awk '/^cache_peer_bytes/ { exit !(\$2 > $before) }' $volume/stats"
	check "$how: the card is taken away under I/O" on target "timeout 60 sh -c 'echo $card > /sys/bus/pci/drivers/hcablk_pcimem/unbind'"
	check "$how: its memory is gone" on target "[ ! -e $(of "$card")/p2pmem ]"
	before=$(count cache_peer_bytes)
	check "$how: requests under way and those after it come right" join load
	same "$how: none of it from the cache" "$before" "$(count cache_peer_bytes)"
	less "$how: that is counted" 0 "$(count cache_fallbacks)"
	output=$((${output:-0} + 1))
	same "$how: it is said once" $output "$(in_log target 'p: the memory of its cache is gone' | wc -l)"
	same "$how: no errors" 0 "$(count errors)"
	lend "$card"
	reconnect p
	check "$how: there is no cache before it is enabled again" on c1 "dd if=$device of=/dev/null bs=4k count=16 iflag=direct"
	same "$how: so nothing is found there" "$before" "$(count cache_peer_bytes)"
	disconnect c1 p
	must on target 'hcablk target unexport p && hcablk target unlisten --all && modprobe -r hcablk_target'
	same "$how: all memory is back" "$all" "$(available)"
done

# What does not go.
must on target 'modprobe hcablk_target'
for mode in cached mixed; do
	like "mode $mode has no cache" "mode direct or p2p.*-22" "$(on target "mkdir -p $target/volumes/n && cd $target/volumes/n &&
		echo $drive > path && echo $mode > mode && echo 1 > cache_mib && echo 1 > enable || cat error; cd / && rmdir $target/volumes/n" 2>&1)"
done
export_volume p "$drive" --mode=p2p --provider="$card" --cache-mib=32 c1
same "a cache that is larger than the card is in RAM, which is said" 1 \
	"$(in_log target 'p: no peer memory for the cache, RAM is used for all: that device has too little' | wc -l)"
same "then the card lends nothing" "$all" "$(available)"
connect c1 p
silent "transfer buffers neither" on target "cat $volume/peers"
must on c1 "dd if=/dev/urandom of=/tmp/data bs=4k count=32 && dd if=/tmp/data of=$device bs=64k oflag=direct"
check "it is right" on c1 "device=$device; $right && $right"
check "it serves" [ "$(count bytes_from_cache)" -ge 131072 ]
same "all of it by RAM, which is counted" "0 0 1" \
	"$(count cache_peer_bytes) $(count p2p_bytes) $(($(count cache_fallbacks) >= 64 && $(count p2p_fallbacks) >= 66))"
disconnect c1 p
must on target 'hcablk target unexport p'
on c1 'rm -f /tmp/data /tmp/block'
