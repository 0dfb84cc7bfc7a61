#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: when preempt-and-abort has returned, no write of the victim reaches the drive, at any moment of its writes and with any delay of the drive.
# turn: 15
# takes: 120
# timeout: 7200

. "${0%/*}/../lib/lib.sh"

preemptions=${HCABLK_PREEMPTIONS:-$((slow == 1 ? 20 : 8))}
[ -z "${HCABLK_WHOLE:-}" ] || preemptions=1000
# One host is preempted on this number of drives at a time, at a different moment on each. The drives are slices of one, of
# `slice` MiB. A guest runs five commands at a time.
drives=5 slice=2
# A slow kernel is busy with two drives and fewer preemptions.
[ "$slow" = 1 ] || drives=2
size=$((slice * 2048))

# table N DELAY: prints the table of slice N, whose writes take DELAY milliseconds: longer than reading the slice.
table() {
	echo "0 $size delay $drive $(($1 * size)) 0 $drive $(($1 * size)) $2"
}

must on target "modprobe -a dm_mod dm_delay && $(keep /run/reservations) && modprobe hcablk_target && env echo /run/reservations > $target/reservations"
own=() victims=() load="" overs=""
for ((n = 0; n < drives; n++)); do
	# The device above counts the requests that wait in it; dm-delay itself does not (accounts_remapped_io).
	must on target "echo '$(table $n 500)' | dmsetup create slow$n && dmsetup mknodes &&
		echo '0 $size linear /dev/mapper/slow$n 0' | dmsetup create over$n && dmsetup mknodes"
	overs+=" /sys/block/$(on target "dmsetup info -c --noheadings -o blkdevname over$n")/inflight"
	export_volume vol$n /dev/mapper/over$n --wwid=6f0c2b62-5f5e-4c0e-9d57-0b8f3e9b610$n c1 c2
	connect c1 vol$n --ctrl-loss-tmo -1
	own+=("$device")
	must on c1 "hcablk-pr $device register 0 11"
	connect c2 vol$n --ctrl-loss-tmo -1
	victims+=("$device")
	load+=" --name=load$n --filename=$device --rw=randwrite"
done
stats=${victims[*]/#\/dev/\/sys/block}
stats=${stats// //stat }/stat

# sum N: prints the checksum of the slice.
sum() {
	echo "dd if=/dev/mapper/slow$1 bs=1M count=$slice iflag=direct 2> /dev/null | md5sum"
}

# preempt N MICROSECONDS DELAY: prints the slice's checksum after the preemption, and again after the drive's delay.
preempt() {
	on c1 "usleep $2; exec hcablk-pr ${own[$1]} abort 11 22 3" || return
	on target "$(sum "$1"); usleep $(($3 * 1500)); $(sum "$1")"
}

made=0 late=0 wrote=0
while [ $made -lt "$preemptions" ]; do
	delays=() befores=() parts=() tables=
	for ((n = 0; n < drives; n++)); do
		delays[n]=$((300 + RANDOM % 600))
		tables+="echo '$(table $n "${delays[n]}")' | dmsetup load slow$n && dmsetup suspend slow$n && dmsetup resume slow$n && $(sum $n) || exit; "
	done
	sums=$(on target "$tables") || die "the drives get new delays"
	mapfile -t befores <<< "$sums"
	must wait_until c2 60 "[ \"\$(cat $initiator/vol*/state | sort -u)\" = live ]"
	must on c2 "for disk in ${victims[*]}; do hcablk-pr \$disk register 0 22 || exit; done"
	must on c1 "for disk in ${own[*]}; do hcablk-pr \$disk reserve 11 3 || exit; done"
	ON_SECONDS=200 spawn victim c2 "fio --direct=1 --ioengine=libaio --bs=32k --iodepth=16 --size=${slice}M --time_based --runtime=100 --refill_buffers --randseed=$made --thread $load 2>&1"
	must wait_until c2 60 "[ \$(awk '\$9 > 0' $stats | wc -l) = $drives ]"
	must wait_until target 60 "[ \$(cat $overs | awk '\$2 > 0' | wc -l) = $drives ]"
	for ((n = 0; n < drives; n++)); do
		moment=$((RANDOM * 40))
		exec {part}< <(preempt $n $moment "${delays[n]}")
		parts[n]=$part
	done
	for ((n = 0; n < drives; n++)); do
		part=${parts[n]}
		mapfile -t sums <&"$part"
		exec {part}<&-
		[ ${#sums[@]} = 2 ] || die "preemption $made: the victim is preempted on drive $n"
		[ "${sums[0]}" = "${sums[1]}" ] || { late=$((late + 1)) && echo "# preemption $made returned too early ($late so far)" >&2; }
		[ "${sums[0]}" = "${befores[n]}" ] || wrote=$((wrote + 1))
		made=$((made + 1))
	done
	join victim > /dev/null && fail "preemption $made: the victim's writes fail"
	must on c1 "for disk in ${own[*]}; do hcablk-pr \$disk release 11 3 || exit; done"
done
same "none of $made preemptions is followed by a late write of the victim" 0 $late
same "before each preemption the victim has written" $made $wrote
for guest in c1 c2; do
	must on $guest "for n in $(seq -s ' ' 0 $((drives - 1))); do hcablk disconnect --force vol\$n || exit; done"
done
must on target "for n in $(seq -s ' ' 0 $((drives - 1))); do hcablk target unexport vol\$n && dmsetup remove over\$n && dmsetup remove slow\$n || exit; done"
