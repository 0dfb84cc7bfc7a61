#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: two clients at depth 128, with a fault of the matrix at least every minute, write their halves of the volume and read them back, again and again, without an error or a wrong block.
# takes: 120
# waits: yes
# skips: siw debug
# timeout: 7200

. "${0%/*}/../lib/lib.sh"
. "${0%/*}/../lib/multi.sh"
. "${0%/*}/../lib/matrix.sh"

[ "$rdma" = rxe ] || skip "TCP notices a silent peer only when a request gets no response in time"

# Minutes; an hour: make soak MINUTES=60.
minutes=${HCABLK_MINUTES:-1}
# MiB that each client writes and reads in a round.
size=64
# The faults that a disk must survive.
faults=(cut flap blackout their_device withdrawn killed)

matrix_begin
declare -A before
for guest in c1 c2; do
	before[$guest]=$(counters $guest vol1)
	# Each round writes each block once, with new data, and then reads all blocks.
	ON_SECONDS=$((minutes * 60 + 1000)) spawn "load-$guest" $guest "n=0
		until [ -e /tmp/stop ]; do
			n=\$((n + 1))
			fio --name=v --filename=${matrix_device[$guest]} --offset=${matrix_offset[$guest]} --size=${size}M --direct=1 --ioengine=libaio \
				--rw=randwrite --bsrange=4k-128k --iodepth=128 --verify=crc32c --verify_fatal=1 --randseed=\$n > /tmp/fio 2>&1 ||
				{ cat /tmp/fio; exit 1; }
			echo \$n > /tmp/rounds
		done"
	must wait_until $guest 60 "awk '{ exit !(\$5 > 40) }' /sys/block/${matrix_device[$guest]#/dev/}/stat"
done
began=$(now_ms)
count=0
declare -A seen=()
while [ $(($(now_ms) - began)) -lt $((minutes * 60000)) ]; do
	for guest in c1 c2; do
		kill -0 "${_jobs[load-$guest]}" 2> /dev/null || break 2
	done
	fault=${faults[RANDOM % ${#faults[@]}]}
	read -r one two what <<< "${matrix_rows[$fault]}"
	"fault_$fault"
	must disk_is c1 vol1 "$one"
	must disk_is c2 vol1 "$two"
	"mend_$fault"
	must disk_is c1 vol1 live
	must disk_is c2 vol1 live
	count=$((count + 1))
	seen[$fault]=$((${seen[$fault]:-0} + 1))
	# Until both have worked for a while: a fault on an idle connection breaks nothing.
	for guest in c1 c2; do
		wait_until $guest 60 "before=\$(awk '{ print \$1 + \$5 }' /sys/block/${matrix_device[$guest]#/dev/}/stat); usleep 500000
			[ \$(awk '{ print \$1 + \$5 }' /sys/block/${matrix_device[$guest]#/dev/}/stat) -gt \$before ]" || break 2
	done
done
seconds=$((($(now_ms) - began) / 1000))
for fault in "${!seen[@]}"; do
	echo "# ${seen[$fault]} times: ${matrix_rows[$fault]#* * }"
done
echo "# $count faults in $seconds s"
check "the faults continued for $minutes minutes" [ $seconds -ge $((minutes * 60)) ]
less "each minute had a fault" $((seconds / 60)) $count
for guest in c1 c2; do
	must on $guest 'touch /tmp/stop'
	check "$guest has read back all that it wrote" join "load-$guest"
	echo "# $guest: $(on $guest 'cat /tmp/rounds') rounds of $size MiB, $(stat_of $guest $initiator/vol1 retries) requests issued again"
	same "no request of $guest has failed" 0 "$(stat_of $guest $initiator/vol1 errors)"
	less "some requests of $guest were issued again" 0 "$(stat_of $guest $initiator/vol1 retries)"
	silent "no counter of $guest decreased" went_back "${before[$guest]}" "$(counters $guest vol1)"
	must on $guest 'rm /tmp/stop /tmp/rounds /tmp/fio'
done
matrix_end
