#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: in mode p2p every byte that the drive transfers goes to or comes from a PCI device's memory, and none to or from RAM.
# tier: heart
# turn: 0
# takes: 30
# timeout: 480

. "${0%/*}/../lib/lib.sh"
. "${0%/*}/../lib/p2p.sh"

tracing=/sys/kernel/tracing
count() {
	stat_of target "$target/volumes/p" "$1"
}

# served DRIVE: checks that the counters agree; sets $read and $written to the bytes.
served() {
	read=$(count read_bytes) written=$(count written_bytes)
	same "$1: no errors" 0 "$(count errors)"
	same "$1: all bytes are counted as peer-to-peer" "$((read + written)) 0" "$(count p2p_bytes) $(count p2p_fallbacks)"
}

lend "$card"
for how in $ways; do
	must on target "modprobe hcablk_target p2p_virtual=$(virtual "$how")"
	export_volume p "$drive" --mode=p2p --provider="$card" c1
	connect c1 p
	like "$how: the card's memory is in use" "^$(host_id c1) [0-9a-f]{16} 0 $card [0-9]+ $how" \
		"$(on target "sort $target/volumes/p/peers")"
	must vm trace target 'pci_nvme_map_addr*'
	check "$how: memory of every shape is written and read right" on c1 "hcablk-scatter $device random $((RANDOM + 1)) 3"
	check "$how: fio verifies many requests at a time" fio c1 "--name=v --filename=$device --rw=randrw --bsrange=512-1m \
		--blockalign=512 --iodepth=32 --size=$(few 6)M --offset=4M --verify=crc32c --verify_fatal=1"
	check "$how: fio verifies small requests" fio c1 "--name=s --filename=$device --rw=randrw --bs=4k --iodepth=8 \
		--size=1M --verify=crc32c --verify_fatal=1"
	trace=$HCABLK_LOGS/p2p-$how.trace
	traced target 'pci_nvme_map_addr*' > "$trace" || die "QEMU's trace"
	check "$how: QEMU saw the drive's data go to the card's memory, and nowhere else" \
		only_in_card "$card" "$trace"
	served "$how"
	case $how in
	bounce) same "$how: every byte was copied once, through RAM" "$((read + written)) $((read + written)) $((read + written))" \
		"$(count p2p_bounce_bytes) $(count copied_bytes) $(count ram_bytes)" ;;
	direct) same "$how: no byte was copied or went through RAM" "0 0 0" \
		"$(count p2p_bounce_bytes) $(count copied_bytes) $(count ram_bytes)" ;;
	esac
	same "$how: the client reads what the drive holds" "$(on c1 "dd if=$device bs=1M count=8 iflag=direct | sha256sum")" \
		"$(on target "dd if=$drive bs=1M count=8 iflag=direct | sha256sum")"

	# The target's own page cache stays coherent.
	must on c1 "dd if=/dev/zero bs=64k count=1 seek=200 oflag=direct of=$device"
	must on target "dd if=$drive bs=64k count=1 skip=200 of=/dev/null; dd if=/dev/urandom of=/tmp/data bs=64k count=1"
	must on c1 "dd if=/dev/urandom of=/tmp/data bs=64k count=1; dd if=/tmp/data bs=64k seek=200 oflag=direct of=$device"
	same "$how: the target's page cache sees a write" "$(on c1 'sha256sum < /tmp/data')" \
		"$(on target "dd if=$drive bs=64k count=1 skip=200 | sha256sum")"
	must on target "dd if=/dev/urandom of=/tmp/data bs=64k count=1; dd if=/tmp/data of=$drive bs=64k seek=200 conv=notrunc"
	same "$how: the client reads data that is dirty in the target's page cache" "$(on target 'sha256sum < /tmp/data')" \
		"$(on c1 "dd if=$device bs=64k count=1 skip=200 iflag=direct | sha256sum")"
	less "$how: requests that met cached pages are counted as fallbacks" 0 "$(count p2p_fallbacks)"
	disconnect c1 p
	must on target 'hcablk target unexport p'

	# Writes are answered when they are on stable media.
	export_volume p "$drive" --mode=p2p --provider="$card" --write-cache=through c1
	connect c1 p
	same "$how, through: clients see no volatile cache" "write through" "$(on c1 "cat /sys/block/$disk/queue/write_cache")"
	must on target "echo > $tracing/trace && echo 1 > $tracing/events/block/block_rq_issue/enable"
	must on c1 "dd if=/dev/zero of=$device bs=64k count=8 oflag=direct && blkdiscard -z -o 1M -l 64k $device"
	must on target "echo 0 > $tracing/events/block/block_rq_issue/enable"
	# issued FIELD: counts requests of the drive by the field before their size
	issued() {
		on target "grep -cE 'block_rq_issue: [0-9]+,[0-9]+ $1 ' $tracing/trace; true"
	}
	same "$how, through: each write has FUA" "8 0" "$(issued 'WFS') $(issued 'WS')"
	same "$how, through: all bytes went through the card's memory" "$(($(count read_bytes) + 8 * 65536)) 0" "$(count p2p_bytes) $(count p2p_fallbacks)"
	disconnect c1 p
	must on target 'hcablk target unexport p && hcablk target unlisten --all && modprobe -r hcablk_target'
	same "$how: all memory of the card is free again" "$(on target "cat $(pci_dir "$card")/p2pmem/size")" \
		"$(on target "cat $(pci_dir "$card")/p2pmem/available")"
done
