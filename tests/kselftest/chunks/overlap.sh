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

[ "$slow" = 1 ] || skip "what takes long on this kernel is the processor's part"
[ "$rdma" != siw ] || skip "on iWARP writes move whole"

# Drive and wire pass on 2.5 MB/s each, far less than the processor could.
rate=20mbit
# Requests of 1 MiB, one at a time, so often in turn.
rounds=3

# medians GUEST read|write DEVICE…: the median time of a request to each, in microseconds, all in one line.
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

# ms MICROSECONDS
ms() {
	printf '%d.%d' $(($1 / 1000)) $(($1 % 1000 / 100))
}

# compare "NAME" DRIVE STREAMS KIB: the drive, STREAMS of them side by side, exported with chunks of KIB KiB and without.
compare() {
	local name=$1 path=$2 streams=$3 kib=$4 pattern drive_time wire on off ideal
	export_volume on "$path" --chunk-kib="$kib" c1
	export_volume off "$path" --chunk-kib=0 c1
	connect c1 on
	local disk_on=$device
	connect c1 off
	local disk_off=$device
	for pattern in read write; do
		# A machine with much else to do may need more than one try until that is not what is measured.
		for _ in 1 2 3; do
			drive_time=$(medians target $pattern "$path")
			read -r on off wire <<< "$(medians c1 $pattern "$disk_on" "$disk_off" "$disk_wire")"
			((on * 100 >= off * 85)) || break
		done
		# All but the first chunks of the one overlap with the other.
		ideal=$((drive_time > wire ? drive_time + wire * streams * kib / 1024 : wire + drive_time * streams * kib / 1024))
		table+=("$(printf '%-18s %-5s %8s %8s %8s %8s %8s %7d %% %7d %%' "$name" $pattern "$(ms "$drive_time")" "$(ms "$wire")" \
			"$(ms "$off")" "$(ms "$on")" "$(ms $ideal)" $(((on - ideal) * 100 / ideal)) $(((off - on) * 100 / off)))")
		within "$name, $pattern: in chunks it takes clearly less time" $((on * 100)) $((off * 85))
	done
	less "$name: most chunks went on before the last had come" $(($(stat_of target $target/volumes/on chunks) / 2)) \
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
