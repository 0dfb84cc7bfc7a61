#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: a read in any mode returns the data that was last written in any other mode, or on the target itself.
# tier: heart
# turn: 2
# takes: 50
# timeout: 480

. "${0%/*}/../lib/lib.sh"

# The text of each block names its writer. Readers read the old data first, so that a stale copy would be noticed.
write_text() {
	printf 'f=/tmp/block; yes "%s" | head -c %s > $f; dd if=$f of=%s bs=%s seek=%s count=1 conv=notrunc %s 2> /dev/null' \
		"$1" "$4" "$2" "$4" "$3" "$5"
}
read_text() {
	printf 'dd if=%s bs=%s skip=%s count=1 %s 2> /dev/null | head -n 1' "$1" "$3" "$2" "$4"
}

# coherent "BACKING" PATH SIZE…
coherent() {
	local what=$1 path=$2 sizes=("${@:3}") block=0 old new direct cached mixed writer reader size got
	for mode in direct cached mixed; do
		export_volume "$mode" "$path" --mode=$mode c1
		connect c1 $mode
		printf -v $mode %s "$device"
	done
	# The client runs one script for each pair, and the target one.
	for size in "${sizes[@]}"; do
		for writer in direct cached mixed target; do
			for reader in direct cached mixed target; do
				block=$((block + 1))
				old="old-$block" new="new-$writer-$reader-$block"
				if [ $writer = target ] && [ $reader = target ]; then
					continue
				elif [ $writer = target ]; then
					must on target "$(write_text "$old" "$path" $block "$size" "")"
					must on c1 "$(read_text "${!reader}" $block "$size" iflag=direct)"
					must on target "$(write_text "$new" "$path" $block "$size" "")"
					got=$(on c1 "$(read_text "${!reader}" $block "$size" iflag=direct)")
				elif [ $reader = target ]; then
					must on c1 "$(write_text "$old" "${!writer}" $block "$size" oflag=direct)"
					must on target "$(read_text "$path" $block "$size" "")"
					must on c1 "$(write_text "$new" "${!writer}" $block "$size" oflag=direct)"
					got=$(on target "$(read_text "$path" $block "$size" "")")
				else
					got=$(on c1 "$(write_text "$old" "${!writer}" $block "$size" oflag=direct)
						$(read_text "${!reader}" $block "$size" iflag=direct) > /dev/null
						$(write_text "$new" "${!writer}" $block "$size" oflag=direct)
						$(read_text "${!reader}" $block "$size" iflag=direct)")
				fi
				same "$what, $size bytes: written $writer, read $reader" "$new" "$got"
			done
		done
	done
	# Sectors of eight writers in one page, and a page that reads the same in each mode.
	must on c1 "for n in 0 1 2 3 4 5 6 7; do
		case \$((n % 3)) in 0) d=$direct ;; 1) d=$cached ;; 2) d=$mixed ;; esac
		yes \"sector \$n\" | head -c 512 > /tmp/block
		dd if=/tmp/block of=\$d bs=512 seek=\$((80000 + n)) count=1 conv=notrunc oflag=direct
	done 2> /dev/null"
	same "$what: sectors written in all modes are all in their page, in all modes" "0 1 2 3 4 5 6 7  x3" \
		"$(on c1 "for d in $direct $cached $mixed; do
			for n in 0 1 2 3 4 5 6 7; do dd if=\$d bs=512 skip=\$((80000 + n)) count=1 iflag=direct 2> /dev/null |
				sed -n '1s/sector \(.*\)/\1/p'; done | tr '\n' ' '; echo
		done | sort | uniq -c | sed 's/^ *\([0-9]*\) \(.*\)/\2 x\1/'")"
	check "$what: direct requests that met cached pages are counted" [ "$(stat_of target $target/volumes/direct met_pages)" -gt 0 ]
	for mode in direct cached mixed; do
		same "$what: $mode: no errors" 0 "$(stat_of target $target/volumes/$mode errors)"
		disconnect c1 $mode
		must on target "hcablk target unexport $mode"
	done
}

coherent drive "$drive" 512 65536
must on target "modprobe ext4; mkfs.ext4 -q -F $drive2 400M; mkdir -p /mnt/files && mount $drive2 /mnt/files &&
	truncate -s 128M /mnt/files/image"
coherent "file on ext4" /mnt/files/image 512

# A write of sectors 57 to 71: the drive has the first seven after two seconds, and the rest when the gate opens. Meanwhile a
# program on the target reads their page, and a write to sector 56 goes through that page, to the drive, and drops the page from
# the cache.
must on target "modprobe -a dm_mod dm_delay && umount /mnt/files &&
	echo '0 64 delay $drive2 0 0 $drive2 0 $((2000 * slow))' | dmsetup create late &&
	echo '0 65472 linear $drive2 64' | dmsetup create gate && dmsetup mknodes &&
	printf '0 64 linear /dev/mapper/late 0\n64 65472 linear /dev/mapper/gate 0\n' | dmsetup create both && dmsetup mknodes"
both=/dev/$(on target 'dmsetup info -c --noheadings -o blkdevname both')
export_volume both "$both" c1
connect c1 both
must on c1 "dd if=/dev/zero of=$device bs=64k count=1 oflag=direct"
must on target "echo 3 > /proc/sys/vm/drop_caches && dmsetup suspend --nolockfs gate"
spawn wide c1 "yes wide | head -c 7680 > /tmp/wide && dd if=/tmp/wide of=$device bs=7680 seek=29184 count=1 oflag=direct,seek_bytes conv=notrunc"
must wait_until target 30 "awk '{ exit !(\$2 >= 1) }' /sys/block/${both#/dev/}/inflight"
must on target "blockdev --setra 0 $both && dd if=$both of=/dev/null bs=4k skip=7 count=1"
must on c1 "yes one | head -c 512 > /tmp/one && dd if=/tmp/one of=$device bs=512 seek=56 count=1 oflag=direct conv=notrunc"
must on target 'dmsetup resume gate'
check "a write next to a write through the page cache ends" join wide
same "the data of the wide write is not lost" "$(on c1 'sha256sum < /tmp/wide')" \
	"$(on c1 "dd if=$device bs=512 skip=57 count=15 iflag=direct | sha256sum")"
same "the data of the write through the page cache is not lost" "$(on c1 'sha256sum < /tmp/one')" \
	"$(on c1 "dd if=$device bs=512 skip=56 count=1 iflag=direct | sha256sum")"
disconnect c1 both
must on target 'hcablk target unexport both && dmsetup remove both && dmsetup remove late && dmsetup remove gate'
on c1 'rm -f /tmp/block /tmp/wide /tmp/one'
on target 'rm -f /tmp/block'
