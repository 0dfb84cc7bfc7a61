#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: a cache in a PCI device's memory is filled and read without RAM, holds the right data, and is bypassed when that memory is removed.
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

available() {
	on target "cat $(pci_dir "$card")/p2pmem/available"
}

verify="--rw=randrw --bsrange=512-96k --blockalign=512 --verify=crc32c --verify_fatal=1"
right="dd if=\$device bs=4k count=32 iflag=direct | cmp - /tmp/data"

lend "$card"
all=$(available)
for how in $ways; do
	must on target "modprobe hcablk_target p2p_virtual=$(virtual "$how")"
	export_volume p "$drive" --mode=p2p --provider="$card" --cache-mib=4 c1
	same "$how: the cache lines are in the card's memory" $((all - (4 << 20))) "$(available)"
	# With one queue, each request finds the send of the previous response completed, and its lines free.
	connect c1 p --queues=1
	like "$how: the transfer buffers are in the card's memory" "^$(host_id c1) [0-9a-f]{16} 0 $card [0-9]+ $how" "$(on target "sort $volume/peers")"
	must vm trace target 'pci_nvme_map_addr*'
	must on c1 "dd if=/dev/urandom of=/tmp/data bs=4k count=32 && dd if=/tmp/data of=$device bs=64k oflag=direct"
	check "$how: a client reads what it wrote" on c1 "device=$device; $right"
	hits=$(count cache_hits) bytes=$(count cache_peer_bytes)
	without_drive_reads "$how: a second read is served from the cache" on c1 "device=$device; $right"
	same "$how: each line of the second read was a hit, in the card's memory" "32 131072" \
		"$(($(count cache_hits) - hits)) $(($(count cache_peer_bytes) - bytes))"
	without_drive_reads "$how: large requests are served from the cache" on c1 "dd if=$device bs=64k count=2 iflag=direct | cmp - /tmp/data"
	without_drive_reads "$how: parts of lines are served from the cache" on c1 "dd if=$device bs=512 skip=3 count=10 iflag=direct | cmp -n 5120 -i 0:1536 - /tmp/data"
	# One of these lines is read from the drive and kept. If the HCA is direct, the partial write changed it in peer memory only.
	must on c1 "yes part | head -c 512 > /tmp/block && dd if=/tmp/block of=$device bs=512 seek=77 conv=notrunc oflag=direct &&
		dd if=/tmp/block of=/tmp/data bs=512 seek=77 conv=notrunc"
	case $how in
	bounce) without_drive_reads "$how: a partly written line is served from the cache" on c1 "device=$device; $right" ;;
	direct)
		check "$how: a partly written line is read right" on c1 "device=$device; $right"
		without_drive_reads "$how: the partly written line is cached again" on c1 "device=$device; $right"
		;;
	esac
	must on c1 "dd if=/dev/urandom of=/tmp/block bs=64k count=1 && dd if=/tmp/block of=$device bs=64k seek=8 oflag=direct &&
		dd if=$device of=/dev/null bs=4k skip=131 count=1 iflag=direct"
	check "$how: a read with one cached line returns the right data" on c1 "dd if=$device bs=64k skip=8 count=1 iflag=direct | cmp - /tmp/block"
	without_drive_reads "$how: that read has cached all its lines" on c1 "dd if=$device bs=64k skip=8 count=1 iflag=direct | cmp - /tmp/block"
	must on c1 "dd if=$device of=/dev/null bs=1k skip=4099 count=1 iflag=direct"

	reconnect p
	# More data than the cache holds, each line read and written at the same time.
	check "$how: fio verifies data with many requests at a time" fio c1 "--name=v --filename=$device $verify --iodepth=16 --offset=1M --size=6M \
		--io_size=$(few 4)M"
	trace=$HCABLK_LOGS/cache-$how.trace
	traced target 'pci_nvme_map_addr*' > "$trace" || die "QEMU has no trace of its drives"
	check "$how: QEMU moved the drive's data to and from the card's memory only" only_in_card "$card" "$trace"
	same "$how: the client reads what the drive holds" "$(on c1 "dd if=$device bs=64k count=112 iflag=direct | sha256sum")" \
		"$(on target "dd if=$drive bs=1M count=7 iflag=direct | sha256sum")"
	less "$how: the cache has evicted lines" 0 "$(count cache_evictions)"
	same "$how: the volume has no errors and no fallbacks to RAM" "0 0 0" "$(count errors) $(count p2p_fallbacks) $(count cache_fallbacks)"
	same "$how: all hits were in the card's memory" "$(count bytes_from_cache)" "$(count cache_peer_bytes)"
	moved=$(($(count read_bytes) + $(count written_bytes)))
	same "$how: the drive moved all bytes except the hits" $((moved - $(count bytes_from_cache))) "$(count p2p_bytes)"
	case $how in
	bounce) same "$how: every byte was copied once, through RAM" "$moved $moved $moved" \
		"$(count p2p_bounce_bytes) $(count copied_bytes) $(count ram_bytes)" ;;
	direct) same "$how: no byte was copied, or in RAM" "0 0 0 0" \
		"$(count p2p_bounce_bytes) $(count copied_bytes) $(count cache_copied_bytes) $(count ram_bytes)" ;;
	esac

	# The card is removed under I/O.
	spawn load c1 "fio --output-format=terse --name=v --filename=$device --direct=1 --ioengine=libaio $verify \
		--iodepth=16 --offset=1M --size=6M --loops=2"
	before=$(count cache_peer_bytes)
	must wait_until target 60 "awk '/^cache_peer_bytes/ { exit !(\$2 > $before) }' $volume/stats"
	check "$how: the card can be unbound under I/O" on target "timeout 60 sh -c 'echo $card > /sys/bus/pci/drivers/hcablk_pcimem/unbind'"
	check "$how: the card's memory does not exist any more" on target "[ ! -e $(pci_dir "$card")/p2pmem ]"
	before=$(count cache_peer_bytes)
	check "$how: requests during and after the removal return the right data" join load
	same "$how: no read is served from the removed cache" "$before" "$(count cache_peer_bytes)"
	less "$how: the fallbacks are counted" 0 "$(count cache_fallbacks)"
	output=$((${output:-0} + 1))
	same "$how: the target logs the loss of the cache once" $output "$(in_log target 'p: the memory of its cache is gone' | wc -l)"
	same "$how: the volume has no errors" 0 "$(count errors)"
	lend "$card"
	reconnect p
	check "$how: the disk is read before the volume is enabled again" on c1 "dd if=$device of=/dev/null bs=4k count=16 iflag=direct"
	same "$how: no read is a hit before the volume is enabled again" "$before" "$(count cache_peer_bytes)"
	disconnect c1 p
	must on target 'hcablk target unexport p && hcablk target unlisten --all && modprobe -r hcablk_target'
	same "$how: the card has all its memory back" "$all" "$(available)"
done

# Combinations that are refused.
must on target 'modprobe hcablk_target'
for mode in cached mixed; do
	like "mode $mode refuses a cache" "mode direct or p2p.*-22" "$(on target "mkdir -p $target/volumes/n && cd $target/volumes/n &&
		echo $drive > path && echo $mode > mode && echo 1 > cache_mib && echo 1 > enable || cat error; cd / && rmdir $target/volumes/n" 2>&1)"
done
export_volume p "$drive" --mode=p2p --provider="$card" --cache-mib=32 c1
same "the target logs once that a cache larger than the card is in RAM" 1 \
	"$(in_log target 'p: no peer memory for the cache: the cache and all buffers are in RAM: the provider has too little' | wc -l)"
same "the card lends no memory then" "$all" "$(available)"
connect c1 p
silent "the transfer buffers use no peer memory" on target "cat $volume/peers"
must on c1 "dd if=/dev/urandom of=/tmp/data bs=4k count=32 && dd if=/tmp/data of=$device bs=64k oflag=direct"
check "the cache in RAM returns the right data" on c1 "device=$device; $right && $right"
check "the cache in RAM serves reads" [ "$(count bytes_from_cache)" -ge 131072 ]
same "all data goes through RAM, and the fallbacks are counted" "0 0 1" \
	"$(count cache_peer_bytes) $(count p2p_bytes) $(($(count cache_fallbacks) >= 64 && $(count p2p_fallbacks) >= 66))"
disconnect c1 p
must on target 'hcablk target unexport p'
on c1 'rm -f /tmp/data /tmp/block'
