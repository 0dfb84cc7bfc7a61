#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: a client sees each kind of drive error, for each kind of request, as the same error that a user on the target sees.
# turn: 9
# takes: 65
# skips: debug
# timeout: 480

. "${0%/*}/../lib/lib.sh"

# A SCSI disk whose commands fail with the sense data that the test sets.
on target 'modprobe -n scsi_debug && modprobe -n sd_mod' || skip "the kernel has no scsi_debug"
must on target "modprobe -a sd_mod && modprobe scsi_debug dev_size_mb=64 lbpu=1 lbpws=1 delay=0 &&
	until name=\$(ls /sys/bus/pseudo/drivers/scsi_debug/adapter0/host*/target*/*/block) && [ -b /dev/\$name ]; do usleep 50000; done 2> /dev/null
	ln -s \$name /dev/scsi"
scsi=/dev/$(on target 'readlink /dev/scsi')
errors=/sys/kernel/debug/scsi_debug/$(on target "basename \$(readlink /sys/block/${scsi#/dev/}/device)")/error

# faults STATUS: prints the host byte, status byte, sense key and additional codes with which a SCSI disk reports the status.
faults() {
	case $1 in
	medium) echo "0 0 2 3 11 0" ;;
	space) echo "0 0 2 7 27 7" ;;
	io) echo "1 0 0 0 0 0" ;;
	target) echo "0 0 2 7 27 0" ;;
	transport) echo "f 0 0 0 0 0" ;;
	protection) echo "0 0 2 5 10 1" ;;
	reservation) echo "0 0 18 0 0 0" ;;
	esac
}

# operations DISK: prints the result of each kind of request, a line each.
# shellcheck disable=SC2016 # expanded in the guest
operations='outcome() {
	local name=$1
	shift
	output=$("$@" 2>&1 > /dev/null) && output=done
	echo "$name: $(echo "$output" | grep -v "Operation forced" | sed "1s/.*: //; q")"
}
operations() {
	for size in 4k 64k 1M; do
		outcome "read $size" dd if=$1 of=/dev/null bs=$size count=1 iflag=direct
		outcome "write $size" dd if=/dev/zero of=$1 bs=$size count=1 oflag=direct conv=notrunc
	done
	outcome flush dd if=/dev/null of=$1 conv=fsync,notrunc
	outcome discard blkdiscard -f -o 2M -l 1M $1
	outcome zeroes blkdiscard -f -z -o 4M -l 1M $1
}'
same_for_all() {
	printf "%s: $1\n" "read 4k" "write 4k" "read 64k" "write 64k" "read 1M" "write 1M" flush discard zeroes
}

export_volume bad "$scsi" --chunk-kib=64 c1
for ways in "--small-read 8192 --small-write 0 --eager-write 131072" "--small-read 0 --small-write 4096 --eager-write 0"; do
	connect c1 bad "$ways"
	# The target registers its eager ring with its first responses.
	must on c1 "for cpu in \$(seq 0 \$((\$(nproc) - 1))); do
		taskset -c \$cpu dd if=$device of=/dev/null bs=4k count=1 iflag=direct || exit
	done"
	same "$ways: all requests to a healthy drive succeed" "$(same_for_all "done")" "$(on c1 "$operations; operations $device")"
	for status in medium space io target transport protection reservation; do
		# The protocol has one status for io, target, transport and protection: the drive
		# has failed.
		remote_error="Input/output error"
		case $status in
		medium) local_error="No data available" remote_error=$local_error ;;
		space) local_error="No space left on device" remote_error=$local_error ;;
		io) local_error="Input/output error" ;;
		target) local_error="Remote I/O error" ;;
		transport) local_error="Link has been severed" ;;
		protection) local_error="Invalid or incomplete multibyte or wide character" ;;
		reservation) local_error="Invalid exchange" remote_error=$local_error ;;
		esac
		before=$(stat_of target $target/volumes/bad errors)
		same "$status: a user on the target sees the drive's error" "$(same_for_all "$local_error")" \
			"$(on target "echo 2 1 ff $(faults $status) > $errors && $operations; operations $scsi")"
		same "$status, $ways: a client sees the error" "$(same_for_all "$remote_error")" "$(on c1 "$operations; operations $device")"
		must on target "echo - 2 ff > $errors"
		less "$status: the target counts the errors" 8 $(($(stat_of target $target/volumes/bad errors) - before))
	done
	same "$ways: the connection stays live, without a protocol error" "live 0" "$(on c1 "cat $initiator/bad/state") $(stat_of c1 $initiator/bad protocol_errors)"
	same "$ways: all requests succeed when the drive is healthy again" "$(same_for_all "done")" "$(on c1 "$operations; operations $device")"
	disconnect c1 bad
done
must on target 'hcablk target unexport bad'

# A file on the drive: its file system returns the errors of the drive.
must on target "modprobe ext4 && mkfs.ext4 -q -F -O ^has_journal $scsi && mkdir -p /mnt/files && mount $scsi /mnt/files &&
	dd if=/dev/zero of=/mnt/files/image bs=1M count=8 conv=fsync && sync"
export_volume file /mnt/files/image c1
connect c1 file
for status in medium space; do
	# Reads and writes only: the file system's own writes do not matter here.
	output=$(on target "echo 2 1 28 $(faults $status) > $errors && echo 2 1 2a $(faults $status) > $errors && $operations; operations /mnt/files/image" | sed -n 1,6p)
	like "file, $status: a user on the target sees an error" "read 4k: [A-Z].*write 1M: [A-Z]" "$output"
	same "file, $status: a client sees the same" "$output" "$(on c1 "$operations; operations $device" | sed -n 1,6p)"
	must on target "echo - 2 28 > $errors; echo - 2 2a > $errors"
done
disconnect c1 file
must on target 'hcablk target unexport file && umount /mnt/files'
must on target "rm /dev/scsi && rmmod scsi_debug"

# The drive supported discards when it was exported, and does not any more.
size=65536
must on target "modprobe dm_mod && modprobe null_blk nr_devices=0 && mkdir /sys/kernel/config/nullb/plain &&
	cd /sys/kernel/config/nullb/plain && echo 64 > size && echo 1 > memory_backed && echo 1 > power &&
	printf '0 $size linear $drive2 0\n' | dmsetup create swapped"
export_volume less "/dev/$(on target 'dmsetup info -c --noheadings -o blkdevname swapped')" c1
connect c1 less
must on target "dmsetup suspend swapped && printf '0 $size linear /dev/plain 0\n' | dmsetup load swapped && dmsetup resume swapped"
# The kernel hides an unsupported discard from users, and writes zeroes instead; the block layer sees the error.
must on c1 "echo 1 > /sys/kernel/tracing/events/block/block_rq_complete/enable; echo > /sys/kernel/tracing/trace
	blkdiscard -f -o 2M -l 64k $device; blkdiscard -f -z -o 4M -l 64k $device"
same "a discard and a write of zeroes end as not supported" "D -95 W -95" "$(on c1 "sed -n 's/.*block_rq_complete: [0-9]*,[0-9]* \([DW]\).*\[\(-[0-9]*\)\]$/\1 \2/p' /sys/kernel/tracing/trace" | xargs)"
same "the target counts both errors" 2 "$(stat_of target $target/volumes/less errors)"
disconnect c1 less
must on target 'hcablk target unexport less'
