#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: a volume whose peer memory is missing, out of reach, too small or removed under I/O only falls back to RAM, and peer memory is never freed with interrupts off.
# tier: heart
# turn: 2
# takes: 70
# timeout: 480

. "${0%/*}/../lib/lib.sh"
. "${0%/*}/../lib/p2p.sh"

count() {
	stat_of target "$target/volumes/p" "$1"
}

# fallen "WHY" PATH PROVIDER REGEX: checks that the volume works through RAM, and that the log gives the reason once.
fallen() {
	export_volume p "$2" --mode=p2p --provider="$3" c1
	connect c1 p
	silent "$1: no peer memory is in use" on target "cat $target/volumes/p/peers"
	check "$1: the disk works" fio c1 "--name=v --filename=$device --rw=randrw --bsrange=4k-64k --blockalign=4k \
		--iodepth=4 --size=1M --verify=crc32c --verify_fatal=1"
	same "$1: the log gives the reason once" 1 "$(in_log target "p: no peer memory, RAM is used: $4" | wc -l)"
	same "$1: all requests are counted as fallbacks" "0 $(($(count reads) + $(count writes)))" "$(count p2p_bytes) $(count p2p_fallbacks)"
	disconnect c1 p
	must on target 'hcablk target unexport p'
}

must on target 'modprobe hcablk_pcimem'
fallen "no such device" "$drive" 0000:7f:00.0 'no PCI device has the address in .provider.'
fallen "a device that lends nothing" "$drive" "$card" 'the provider has no memory left to lend'
lend "$far_card"
fallen "a device out of reach" "$drive" "$far_card" 'the drive and the HCA do not reach the provider'
must on target "echo 0 \$(blockdev --getsz $drive2) linear $drive2 0 | dmsetup create linear"
fallen "a drive without DMA to other devices" "/dev/$(on target 'dmsetup info -c --noheadings -o blkdevname linear')" "$card" 'its drive does no DMA to other PCI devices'
must on target 'dmsetup remove linear && truncate -s 8M /tmp/file'
refuse "a file is refused" on target 'hcablk target export f /tmp/file --mode p2p'
refuse "naming a PCI device for a mode without peer memory is refused" on target "hcablk target export f $drive --mode cached --provider $card"
for nonsense in '' near 03:00 0000:03:00.8; do
	refuse "'$nonsense' is refused as a provider" on target "mkdir -p $target/volumes/n && env echo '$nonsense' > $target/volumes/n/provider"
done
must on target "rmdir $target/volumes/n"

# Without a name the target uses the nearest memory: the drive's own.
export_volume p $drive3 --mode=p2p c1
connect c1 p
own=$(on target "basename \$(readlink -f /sys/block/\$(basename \$(readlink $drive3))/device/device)")
like "the drive's own memory is chosen as the nearest" " $own " "$(on target "cat $target/volumes/p/peers")"
check "the disk works through the drive's own memory" fio c1 "--name=v --filename=$device --rw=randrw --bsrange=4k-64k --blockalign=4k \
	--iodepth=4 --size=1M --verify=crc32c --verify_fatal=1"
same "all bytes went through the drive's own memory" "$(($(count read_bytes) + $(count written_bytes))) 0" "$(count p2p_bytes) $(count p2p_fallbacks)"
disconnect c1 p
must on target 'hcablk target unexport p'

# Less memory than concurrent requests need: 4 MiB for two queues of 8 MiB.
lend "$small_card"
export_volume p "$drive" --mode=p2p --provider="$small_card" c1
connect c1 p
same "all of the small card's memory was taken" 0 "$(on target "cat $(pci_dir "$small_card")/p2pmem/available")"
check "fio verifies more requests than the memory holds" fio c1 "--name=v --filename=$device --rw=randrw --bs=256k --iodepth=64 \
	--numjobs=2 --size=$(few 16)M --offset_increment=32M --verify=crc32c --verify_fatal=1"
less "some requests use the memory" 0 "$(count p2p_bytes)"
less "other requests fall back" 0 "$(count p2p_fallbacks)"
same "each request uses one or the other" "$(($(count read_bytes) + $(count written_bytes)))" \
	"$(($(count p2p_bytes) + $(count ram_bytes) - $(count p2p_bounce_bytes)))"
disconnect c1 p
must on target 'hcablk target unexport p'
same "all of the small card's memory is free again" "$((4 << 20))" "$(on target "cat $(pci_dir "$small_card")/p2pmem/available")"

# Freeing peer memory may sleep, so the last request that uses it must not free it. The debug kernel, which has no function
# tracer, reports a violation itself.
tracing=/sys/kernel/tracing
tracer=$(on target "grep -ow function $tracing/available_tracers || true")
freed() {
	on target "sed '/^#/d' $tracing/trace | grep -F pci_free_p2pmem"
}

# The card is removed under I/O, for each data path to the wire.
for how in $ways; do
	must on target "hcablk target unlisten --all && modprobe -r hcablk_target && modprobe hcablk_target p2p_virtual=$(virtual "$how")"
	lend "$card"
	export_volume p "$drive" --mode=p2p --provider="$card" c1
	connect c1 p
	spawn load c1 "fio --output-format=terse --name=v --filename=$device --direct=1 --ioengine=libaio --rw=randrw \
		--bsrange=4k-256k --blockalign=4k --iodepth=32 --size=$(few 12)M --loops=2 --verify=crc32c --verify_fatal=1"
	must wait_until target 60 "awk '/^p2p_bytes/ { exit !(\$2 > 1000000) }' $target/volumes/p/stats"
	[ -z "$tracer" ] || must on target "echo pci_free_p2pmem > $tracing/set_ftrace_filter && echo function > $tracing/current_tracer"
	check "$how: the card is removed under I/O" on target "timeout 60 sh -c 'echo $card > /sys/bus/pci/drivers/hcablk_pcimem/unbind'"
	if [ -n "$tracer" ]; then
		less "$how: the card's memory was freed" 0 "$(freed | wc -l)"
		silent "$how: the memory was freed with interrupts on" on target "sed -n '/^#/d; /pci_free_p2pmem/{/\] [dD]/p}' $tracing/trace"
		must on target "echo nop > $tracing/current_tracer && echo > $tracing/set_ftrace_filter"
	fi
	check "$how: the card's memory is gone" on target "[ ! -e $(pci_dir "$card")/p2pmem ]"
	silent "$how: no session has the card's memory" on target "cat $target/volumes/p/peers"
	before=$(count p2p_bytes)
	check "$how: requests before and after the removal return the right data" join load
	check "$how: the disk works after the removal" on c1 "hcablk-scatter $device random $((RANDOM + 1)) 1"
	same "$how: no request uses the card after the removal" "$before" "$(count p2p_bytes)"
	less "$how: requests fell back" 0 "$(count p2p_fallbacks)"
	same "$how: no request failed" 0 "$(count errors)"
	lend "$card"
	reconnect p
	like "$how: a new session uses the card again" " $card [0-9]+ $how" "$(on target "cat $target/volumes/p/peers")"
	disconnect c1 p
	must on target 'hcablk target unexport p'
done
