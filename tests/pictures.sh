#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0
#
# Makes the pictures of the documents, docs/pictures, from a run in guests: how the data of a read of 1 MiB moves in
# chunks and whole, and what the command shows; and the recordings of the host tests. Called by `make pictures`.

# Outside of the runner: let it boot the guests and run this script.
if [ -z "${HCABLK_CONTROL:-}" ]; then
	exec "$(dirname -- "${BASH_SOURCE[0]}")/run.sh" --demo "$(realpath -- "${BASH_SOURCE[0]}")"
fi

. "${0%/*}/kselftest/lib/lib.sh"
. "${0%/*}/kselftest/lib/chunks.sh"
. "${0%/*}/kselftest/lib/trace.sh"

harness=${0%/*}/harness
pictures=${0%/*}/../docs/pictures
show='hcablk trace show /tmp/target.trace /tmp/c1.trace'
mkdir -p "$pictures"

# keep GUEST FILE NAME: copies a guest's file into the pictures of the documents
keep() {
	on "$1" "cat $2" > "$pictures/$3.svg" || die "the picture $3"
	pass "docs/pictures/$3.svg"
}

# screen NAME TITLE COLUMNS COMMAND…: draws a command's output on c1 as a picture
screen() {
	local name=$1 title=$2 columns=$3
	shift 3
	on c1 "$*" | python3 "$harness/terminal.py" "$columns" 0 "$title" > "$pictures/$name.svg" || die "the picture $name"
	pass "docs/pictures/$name.svg"
}

# Drive and wire transfer 2.5 MB/s each, far less than the processor could, so that the picture shows them.
must on target 'modprobe null_blk nr_devices=0'
make_drive slow 26000000 64
export_volume chunked /dev/slow --chunk-kib=64 c1
export_volume whole /dev/slow --chunk-kib=0 c1
connect c1 chunked
chunked=$device
connect c1 whole
whole=$device
netem target eth0 rate 20mbit
begin_recording c1 target
must on c1 "for i in 1 2 3 4; do dd if=$chunked of=/dev/null bs=4k count=1 skip=\$((i * 100)) iflag=direct; done
	dd if=$chunked of=/dev/null bs=1M count=1 skip=3 iflag=direct
	dd if=$whole of=/dev/null bs=1M count=1 skip=5 iflag=direct
	for i in 1 2 3 4; do dd if=$whole of=/dev/null bs=4k count=1 skip=\$((i * 100)) iflag=direct; done"
end_recording c1 target
netem target eth0
bring_recording target c1
# The host tests of the command use these.
recordings=${0%/*}/../userspace-tools/hcablk/tests/recordings
mkdir -p "$recordings"
on target 'cat /tmp/target.trace' > "$recordings/target.trace" || die "the target's recording"
on c1 'cat /tmp/c1.trace' > "$recordings/c1.trace" || die "the client's recording"
for how in true false; do
	number=$(on c1 "$show --json" | jq ".requests[] | select(.bytes == 1048576 and .is_chunked == $how) | .number")
	must on c1 "$show --request $number --svg /tmp/$how.svg"
done
keep c1 /tmp/true.svg read-chunked
keep c1 /tmp/false.svg read-whole
number=$(on c1 "$show --json" | jq '.requests[] | select(.bytes == 1048576 and .is_chunked) | .number')
screen trace-request "c1# hcablk trace show target.trace c1.trace --request $number" 80 "$show --request $number"
disconnect c1 chunked
disconnect c1 whole

export_volume data "$drive" c1
export_volume backup "$drive2" c1
connect c1 data --ctrl-loss-tmo 600
busy=$device
connect c1 backup --ctrl-loss-tmo 600
must on c1 'hcablk times data --measure on && hcablk times backup --measure on'
ON_SECONDS=620 spawn load c1 "fio --name=load --filename=$busy --direct=1 --rw=randrw --bs=4k --iodepth=8 --ioengine=libaio --time_based --runtime=600 --output=/dev/null"
screen stats 'c1# hcablk stats 1 5' 80 hcablk stats 1 5
must on c1 'rm -f /tmp/keys && mkfifo /tmp/keys && mkdir -p /dev/pts && { grep -q " /dev/pts " /proc/mounts || mount -t devpts devpts /dev/pts; }'
ON_SECONDS=300 spawn top c1 'exec 3<> /tmp/keys; TERM=xterm script -q -e -f -c "stty rows 24 cols 80; exec hcablk top 1" /tmp/screen < /tmp/keys > /dev/null'
# The second refresh shows rates.
must wait_until c1 60 '[ $(grep -c data /tmp/screen) -gt 3 ] || [ $(wc -c < /tmp/screen) -gt 6000 ]'
# The second disk of the list is the busy one.
must on c1 'printf "\033[B" > /tmp/keys; usleep 3000000; printf q > /tmp/keys'
must join top
on c1 'cat /tmp/screen' | python3 "$harness/terminal.py" 80 24 'c1# hcablk top' > "$pictures/top.svg" || die "the picture top"
pass "docs/pictures/top.svg"
screen list 'c1# hcablk list' 100 hcablk list
must on c1 'killall -q -INT fio; true'
join load || true
