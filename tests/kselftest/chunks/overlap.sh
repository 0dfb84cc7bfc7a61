#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: a large request in chunks takes clearly less time than as a whole, since drive and wire work at the same time.
# turn: 10
# takes: 40
# skips: siw debug
# alone: it compares times
# timeout: 480

. "${0%/*}/../lib/lib.sh"
. "${0%/*}/../lib/chunks.sh"

[ "$slow" = 1 ] || skip "on this kernel the processor takes most of the time"
[ "$rdma" != siw ] || skip "on iWARP writes move whole"

# Drive and wire move 2.5 MB/s each, far less than the processor could.
rate=20mbit
# The number of requests of 1 MiB to each device, one at a time.
rounds=3

# medians GUEST read|write DEVICE…: prints the median time of a request to each device, in microseconds, in one line.
medians() {
	local guest=$1 pattern=$2 what
	shift 2
	case $pattern in
	read) what='if=$device of=/dev/null iflag=direct' ;;
	write) what='if=/dev/zero of=$device oflag=direct conv=notrunc' ;;
	esac
	on "$guest" "for round in \$(seq $rounds); do
		for device in $*; do
			# \"1048576 bytes (1.0 MB, 1.0 MiB) copied, 0.25 s, 4.0 MB/s\"
			dd bs=1M count=1 $what 2>&1 | sed -n \"s|.* copied, \\([0-9.]*\\) s.*|\$device \\1|p\"
		done
	done > /tmp/times
	for device in $*; do
		awk -v device=\$device '\$1 == device { printf \"%d\\n\", \$2 * 1000000 }' /tmp/times | sort -n | sed -n $((rounds / 2 + 1))p
	done | xargs; rm /tmp/times"
}

# ms MICROSECONDS: prints milliseconds with one decimal
ms() {
	printf '%d.%d' $(($1 / 1000)) $(($1 % 1000 / 100))
}

# compare "NAME" DRIVE STREAMS KIB: exports DRIVE, which consists of STREAMS drives side by side,
# with chunks of KIB KiB and without.
compare() {
	local name=$1 path=$2 streams=$3 kib=$4 pattern drive_time wire on off ideal
	export_volume on "$path" --chunk-kib="$kib" c1
	export_volume off "$path" --chunk-kib=0 c1
	connect c1 on
	local disk_on=$device
	connect c1 off
	local disk_off=$device
	for pattern in read write; do
		# On a busy machine the first tries may measure something else.
		for _ in 1 2 3; do
			drive_time=$(medians target $pattern "$path")
			read -r on off wire <<< "$(medians c1 $pattern "$disk_on" "$disk_off" "$disk_wire")"
			((on * 100 >= off * 85)) || break
		done
		# At best the slower of drive and wire works all the time, and only the first chunks
		# of the other do not overlap with it.
		ideal=$((drive_time > wire ? drive_time + wire * streams * kib / 1024 : wire + drive_time * streams * kib / 1024))
		table+=("$(printf '%-18s %-5s %8s %8s %8s %8s %8s %7d %% %7d %%' "$name" $pattern "$(ms "$drive_time")" "$(ms "$wire")" \
			"$(ms "$off")" "$(ms "$on")" "$(ms $ideal)" $(((on - ideal) * 100 / ideal)) $(((off - on) * 100 / off)))")
		within "$name, $pattern: a request in chunks takes clearly less time" $((on * 100)) $((off * 85))
	done
	less "$name: most chunks were passed on before the last one arrived" $(($(stat_of target $target/volumes/on chunks) / 2)) \
		"$(stat_of target $target/volumes/on early_chunks)"
	disconnect c1 on
	disconnect c1 off
	must on target 'hcablk target unexport on && hcablk target unexport off'
}

must on target 'modprobe null_blk nr_devices=0'
make_drive instant 0 1024
export_volume wire /dev/instant --chunk-kib=0 c1
connect c1 wire
disk_wire=$device
netem target eth0 rate $rate
netem c1 eth0 rate $rate
table=()
make_drive one 52428800 128
compare "one drive" /dev/one 1 128
for n in 1 2 3 4; do
	make_drive part$n 104857600 64
done
raid md0 64 part1 part2 part3 part4
compare "four, md RAID 0" "$striped" 4 64
netem target eth0
netem c1 eth0

echo "# Milliseconds for 1 MiB at depth 1:"
printf '# %-18s %-5s %8s %8s %8s %8s %8s %9s %9s\n' drive what drive wire whole chunks ideal "to ideal" saved
printf '# %s\n' "${table[@]}"
