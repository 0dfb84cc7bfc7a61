#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: a FUA write is durable when it is answered, on every data path to the target and from there to the drive.
# turn: 21
# takes: 40
# timeout: 480

. "${0%/*}/../lib/lib.sh"
. "${0%/*}/../lib/p2p.sh"

trace=/sys/kernel/tracing
# The number of writes of each size; each size has its own place.
each=2
# place BYTES: prints the MiB at which the writes of this size begin.
place() {
	case $1 in
	4096) echo 8 ;;
	16384) echo 10 ;;
	65536) echo 12 ;;
	524288) echo 14 ;;
	esac
}

# counter NAME "COUNTERS": prints the counter's value in the text of a file `stats`
counter() {
	awk -v name="$1" '$1 == name { print $2 }' <<< "$2"
}

# drive_saw DEVICE: prints the drive's commands since the trace was emptied, "FUA-BYTES OTHER-BYTES
# FUA-WRITES FLUSHES", and a word MIB:BYTES for each 2 MiB, from MIB on, that got FUA writes.
drive_saw() {
	on target "dev=\$(lsblk -dno MAJ:MIN $1 | tr -d ' ' | tr : ,)
		awk -v dev=\"\$dev\" '
		match(\$0, /block_rq_issue: .*/) {
			n = split(substr(\$0, RSTART), f, \" \")
			if (f[2] != dev) next
			if (f[3] ~ /^FF/) flushes++
			if (f[3] !~ /W/) next
			for (i = 4; f[i] != \"+\" && i < n; i++);
			bytes = f[i + 1] * 512; mib = int(f[i - 1] / 4096) * 2
			if (f[3] ~ /WF/) { fua += bytes; by_fua++; at[mib] += bytes } else plain += bytes
		}
		END {
			printf \"%d %d %d %d\", fua, plain, by_fua, flushes
			for (mib = 0; mib < 64; mib += 2) if (mib in at) printf \" %d:%d\", mib, at[mib]
		}' $trace/trace; echo > $trace/trace"
}

# writes KIND DRIVE HOW CHUNKS "SIZES" [plain]: makes writes of these sizes on the data path KIND, and checks what the drive gets:
#	fua		the drive supports FUA: it gets FUA for all of their bytes, and for no others
#	flush		it does not, or the page cache is between: it gets their bytes, and a flush after each
#	either		a file system chooses for each write
writes() {
	local kind=$1 drive=$2 how=$3 chunks=$4 sizes=$5 plain=${6:-} sync=,dsync
	local what="$volume, $kind${plain:+, without FUA}" size script=: total=0 n=0 places='' before after fua written by_fua flushes at name
	[ -z "$plain" ] || sync=
	for size in $sizes; do
		script+="; dd if=/dev/urandom of=$device bs=$size count=$each seek=$(place "$size")M conv=notrunc oflag=direct,seek_bytes$sync || exit"
		total=$((total + each * size)) n=$((n + each)) places+=" $(place "$size"):$((each * size))"
	done
	before=$(on target "cat $target/volumes/$volume/stats; echo > $trace/trace")
	must on c1 "$script"
	after=$(on target "cat $target/volumes/$volume/stats")
	read -r fua written by_fua flushes at <<< "$(drive_saw "$drive")"
	local -A grew
	for name in writes fua_writes flushes inline_writes eager_writes rdma_reads chunks; do
		grew[$name]=$(($(counter $name "$after") - $(counter $name "$before")))
	done
	case $kind in
	inline) same "$what: the data arrives with the request" "$n 0 0" "${grew[inline_writes]} ${grew[eager_writes]} ${grew[rdma_reads]}" ;;
	eager) same "$what: the data arrives in the eager ring" "0 $n 0" "${grew[inline_writes]} ${grew[eager_writes]} ${grew[rdma_reads]}" ;;
	registered)
		same "$what: the target reads the data by RDMA READ" "0 0 1" "${grew[inline_writes]} ${grew[eager_writes]} $((grew[rdma_reads] >= n))"
		same "$what: large writes move in $chunks chunks" "$chunks" "${grew[chunks]}"
		;;
	esac
	if [ -n "$plain" ]; then
		same "$what: neither the target nor the drive sees FUA or a flush" "0 0 0" "${grew[fua_writes]} $fua $flushes"
		return
	fi
	same "$what: the target counts each FUA write" "$n $n" "${grew[writes]} ${grew[fua_writes]}"
	# dd's own flushes follow its writes; the target counts them.
	case $how in
	fua)
		same "$what: the drive writes all bytes with FUA" "$total, ${places# }" "$fua, $at"
		;;
	flush)
		less "$what: the drive writes all bytes" $((total - 1)) "$written"
		less "$what: the drive is flushed after each write" $((n + grew[flushes] - 1)) "$flushes"
		;;
	either)
		less "$what: the drive writes all bytes" $((total - 1)) $((fua + written))
		less "$what: the drive gets FUA or a flush for each write" $((n + grew[flushes] - 1)) $((by_fua + flushes))
		;;
	esac
	same "$what: the target counts dd's flushes" $n "${grew[flushes]}"
}

# kinds HOW DRIVE CHUNKS "KIND…": makes the volume's writes of every kind.
kinds() {
	local how=$1 drive=$2 chunks=$3 kind options sizes
	for kind in $4; do
		sizes="4096 16384 65536 524288"
		case $kind in
		inline) options="--small-write 4096 --eager-write 0" sizes=4096 ;;
		eager) options="--small-write 0 --eager-write 1048576" ;;
		registered) options="--small-write 0 --eager-write 0" ;;
		esac
		# shellcheck disable=SC2086 # options
		connect c1 "$volume" --queues 1 $options
		# The target registers its eager ring with its first response.
		must on c1 "dd if=$device of=/dev/null bs=4k count=1 iflag=direct"
		writes "$kind" "$drive" "$how" "$chunks" "$sizes"
		[ "$volume" != direct ] || writes "$kind" "$drive" "$how" "$chunks" "$sizes" plain
		disconnect c1 "$volume"
	done
	must on target "hcablk target unexport $volume"
}

# exported VOLUME PATH [--OPTION…]: exports the volume to c1, and sets $volume
exported() {
	volume=$1
	export_volume "$@" c1
}

all="inline eager registered"
# On iWARP, and with force_mr, data that is read by RDMA READ moves whole.
cut=$((each * 8))
{ [ "$rdma" = rxe ] && ! on target 'grep -q hcablk_target.force_mr=1 /proc/cmdline'; } || cut=0
must on target "modprobe null_blk nr_devices=0 && mkdir /sys/kernel/config/nullb/nofua && cd /sys/kernel/config/nullb/nofua &&
	echo 64 > size && echo 1 > memory_backed && echo 1 > cache_size && echo 0 > fua && echo 1 > power &&
	modprobe ext4 && mkfs.ext4 -q -F -O ^has_journal $drive2 64M && mkdir -p /mnt/files && mount $drive2 /mnt/files &&
	dd if=/dev/zero of=/mnt/files/image bs=1M count=16 conv=fsync
	echo 360000 > /proc/sys/vm/dirty_expire_centisecs; echo 0 > /proc/sys/vm/dirty_writeback_centisecs
	echo 1 > $trace/events/block/block_rq_issue/enable"

exported direct "$drive" --chunk-kib=64
kinds fua "$drive" $cut "$all"
exported whole "$drive" --chunk-kib=0
kinds fua "$drive" 0 registered
# A drive that needs a flush for FUA gets the data whole.
exported nofua /dev/nofua --chunk-kib=64
kinds flush /dev/nofua 0 "$all"
exported lines "$drive" --cache-mib=8 --chunk-kib=0
kinds fua "$drive" 0 "inline registered"
exported cached "$drive" --mode=cached
kinds flush "$drive" 0 "$all"
exported mixed "$drive" --mode=mixed
kinds flush "$drive" 0 "$all"
exported file /mnt/files/image
kinds either "$drive2" 0 "$all"
exported filecached /mnt/files/image --mode=cached
kinds flush "$drive2" 0 "$all"
lend "$card"
exported p2p "$drive" --mode=p2p --provider="$card" --chunk-kib=64
kinds fua "$drive" $cut registered
must on target "echo 3000 > /proc/sys/vm/dirty_expire_centisecs; echo 500 > /proc/sys/vm/dirty_writeback_centisecs
	rmdir /sys/kernel/config/nullb/nofua"
