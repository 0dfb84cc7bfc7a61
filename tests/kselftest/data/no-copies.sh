#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: no instruction of the driver touches data that passes, neither at the client nor at the target, except for intended copies.
# turn: 6
# takes: 60
# skips: debug siw
# timeout: 480

. "${0%/*}/../lib/lib.sh"

[ "$rdma" = rxe ] || skip "soft-iWARP does not touch what it sends"
# A probe finds the memory of bios, and the processor's debug registers find the accesses to it.
probes=/sys/kernel/tracing/kprobe_events
on target "[ -e $probes ] && [ -e /proc/kcore ]" || skip "the kernel has no probes"

# ours "ACCESSES": prints the number of accesses by the driver; transports "ACCESSES": by soft-RoCE, which is software and copies
# everything that a card would move by DMA: its accesses show that the watched memory is where the data goes.
ours() {
	awk '$1 ~ /^hcablk/ { n += $2 } END { print n + 0 }' <<< "$1"
}
transports() {
	awk '$1 == "rdma_rxe" { n += $2 } END { print n + 0 }' <<< "$1"
}

# untouched "DESCRIPTION" "ACCESSES"; touched "DESCRIPTION" "ACCESSES": check that the driver has none, or some
untouched() {
	less "$1: accesses of soft-RoCE are seen" 0 "$(transports "$2")"
	same "$1: the driver has no access" "0 0" "$(ours "$2") $(awk '$1 == "lost" { print $2 }' <<< "$2" | grep . || echo 0)"
	echo "# $1: $(xargs <<< "$2")" >&2
}
touched() {
	less "$1: accesses of the driver are seen" 0 "$(ours "$2")"
	echo "# $1: $(xargs <<< "$2")" >&2
}

# Finds the data of bios when the target submits them.
must on target "echo 'p:hcablk/bio submit_bio page=bio->bi_io_vec->bv_page:x64 offset=bio->bi_io_vec->bv_offset:u32 size=bio->bi_iter.bi_size:u32 frames=@vmemmap_base:x64' > $probes
	echo 1 > /sys/kernel/tracing/events/hcablk/bio/enable"
base=0x$(on target 'hcablk-watch base')

# places BYTES|any: prints two addresses for each of the two pages that bios of BYTES bytes used
# most: the start of the data, and one within it.
places() {
	local size=$1
	[ "$size" != any ] || size="[0-9]*"
	on target "sed -n 's/.* bio: .*page=\(0x[0-9a-f]*\) offset=\([0-9]*\) size=$size frames=\(0x[0-9a-f]*\)$/\1 \2 \3/p' /sys/kernel/tracing/trace |
			sort | uniq -c | sort -rn | head -n 2; echo > /sys/kernel/tracing/trace" |
		while read -r _ page offset frames; do
			frame=$(((page - frames) / 64))
			address=$((base + frame * 4096 + offset))
			printf '%x %x ' $address $((address + 2048 + 64))
		done
}

# io BYTES COUNT: makes COUNT writes and COUNT reads.
io() {
	must on c1 "dd if=/dev/zero of=$device bs=$1 count=$2 oflag=direct conv=notrunc && dd if=$device of=/dev/null bs=$1 count=$2 iflag=direct"
}

# learn BYTES COUNT [BIO-BYTES]: finds the memory of these writes and reads.
learn() {
	must on target "echo > /sys/kernel/tracing/trace"
	io "$1" "$2"
	must on target sync
	places=$(places "${3:-$1}")
	[ -n "$places" ] || die "the target submits no bios of ${3:-$1} bytes"
}

# watched BYTES COUNT: sets $output to the modules that access these places during COUNT writes and reads.
watched() {
	spawn watch target "exec hcablk-watch at $places > /tmp/watch"
	must wait_until target 60 'grep -q watching /tmp/watch'
	io "$1" "$2"
	must on target 'killall -TERM hcablk-watch'
	must join watch
	output=$(on target 'grep -v watching /tmp/watch; rm /tmp/watch')
}

# Few buffers, so that each is often used.
must on target 'hcablk target listen --queue-credits 8 --buffer-mib 1'
export_volume vol1 "$drive" --chunk-kib=0 c1
for kind in inline eager registered; do
	bytes=65536
	case $kind in
	inline) options="--small-read 4096 --small-write 4096 --eager-write 0" bytes=4096 ;;
	eager) options="--small-read 0 --small-write 0 --eager-write 131072" ;;
	registered) options="--small-read 0 --small-write 0 --eager-write 0" ;;
	esac
	# shellcheck disable=SC2086 # options
	connect c1 vol1 --queues 1 $options
	must on c1 "dd if=$device of=/dev/null bs=4k count=1 iflag=direct"
	untouched "client, $kind writes" "$(on c1 "hcablk-watch write $device $bytes 20")"
	case $kind in
	inline) touched "client, small reads, which are copied" "$(on c1 "hcablk-watch read $device $bytes 20")" ;;
	registered) untouched "client, reads" "$(on c1 "hcablk-watch read $device $bytes 20")" ;;
	esac
	learn $bytes 64
	watched $bytes 64
	untouched "target, $kind" "$output"
	disconnect c1 vol1
done
must on target 'hcablk target unexport vol1'

export_volume cut "$drive" --chunk-kib=64 c1
connect c1 cut --queues 1 --eager-write 0
learn 524288 8 65536
watched 524288 8
untouched "target, chunks" "$output"
disconnect c1 cut
must on target 'hcablk target unexport cut'

# Where the driver copies, the same method sees it: the bios have pages of the page cache.
export_volume cached "$drive" --mode=cached c1
connect c1 cached --queues 1 --small-read 0 --small-write 0 --eager-write 0
learn 65536 8 any
watched 65536 8
touched "target, through the page cache" "$output"
disconnect c1 cached
must on target "hcablk target unexport cached; echo 0 > /sys/kernel/tracing/events/hcablk/bio/enable; echo > $probes"
