#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: recordings of both sides are merged on one clock: the chunks cover a request exactly, and no event comes before its cause.
# tier: heart
# turn: 14
# takes: 10
# guests: target c1
# skips: siw

. "${0%/*}/../lib/lib.sh"
. "${0%/*}/../lib/chunks.sh"
. "${0%/*}/../lib/trace.sh"

[ "$rdma" != siw ] || skip "on iWARP writes are not split"

harness=${0%/*}/../../harness
show='hcablk trace show /tmp/target.trace /tmp/c1.trace'
tracing=/sys/kernel/tracing

must on target 'modprobe null_blk nr_devices=0'
make_drive slow 2000000 64
export_volume chunked /dev/slow --chunk-kib=64 c1
export_volume whole /dev/slow --chunk-kib=0 c1
connect c1 chunked
chunked=$device
connect c1 whole
whole=$device
# A trace instance of another user must stay as it is.
must on c1 "mkdir $tracing/instances/other && echo 1 > $tracing/instances/other/events/hcablk/hcablk_sent/enable"

begin_recording c1 target
must on c1 "for i in 1 2 3 4; do dd if=$chunked of=/dev/null bs=4k count=1 skip=\$((i * 100)) iflag=direct; done
	dd if=$chunked of=/dev/null bs=1M count=1 skip=3 iflag=direct
	dd if=$whole of=/dev/null bs=1M count=1 skip=5 iflag=direct
	dd if=/dev/zero of=$chunked bs=1M count=1 seek=7 oflag=direct
	for i in 1 2 3 4; do dd if=$whole of=/dev/null bs=4k count=1 skip=\$((i * 100)) iflag=direct; done"
end_recording c1 target
silent "the recordings have left no trace instance" on c1 "ls $tracing/instances | sed -n /hcablk/p"
same "another user's trace instance is unchanged" 1 "$(on c1 "cat $tracing/instances/other/events/hcablk/hcablk_sent/enable")"
must on c1 "echo 0 > $tracing/instances/other/events/hcablk/hcablk_sent/enable; rmdir $tracing/instances/other"
same "nothing is traced after the recordings" 0 "$(on target "cat $tracing/events/hcablk_target/enable")"

bring_recording target c1
json=$(on c1 "$show --json --perfetto /tmp/all.json --svg /tmp/largest.svg")
said=$(python3 "$harness/moved.py" <<< "$json") || said="impossible: $said"
like "the merged recording is possible and complete" '^2 1[1-9] 2$' "$said"
# Prints the request of 1 MiB at this sector as OP WAY CHUNKS BYTES: the sizes of its chunks.
of_sector() {
	python3 -c 'import json, sys
sector, chunked = int(sys.argv[1]), sys.argv[2]
for one in json.load(sys.stdin)["requests"]:
    if one["sector"] == sector and one["bytes"] == 1 << 20 and str(one["is_chunked"]) == chunked:
        print(one["client"], one["op"], one["way"], one["status"], *(chunk["bytes"] >> 10 for chunk in one["chunks"]))' "$@" <<< "$json"
}
sixteen=$(printf ' 64%.0s' {1..16})
same "a read of 1 MiB in chunks" "c1 read key 0$sixteen" "$(of_sector $((3 << 11)) True)"
same "a read of 1 MiB that is not split" "c1 read key 0 1024" "$(of_sector $((5 << 11)) False)"
same "a write in chunks" "c1 write key 0$sixteen" "$(of_sector $((7 << 11)) True)"
overlap=$(python3 -c 'import json, sys
print(*(one["both_ns"] for one in json.load(sys.stdin)["requests"] if one["is_chunked"] and one["op"] == "read"))' <<< "$json")
less "drive and wire worked on the read at the same time" 0 "$overlap"

on c1 'cat /tmp/all.json' > "/tmp/all.$$.json"
like "the file for Perfetto follows its format" '^[0-9]+ slices, [0-9]+ arrows, 0 problems$' "$(python3 "$harness/traceevent.py" "/tmp/all.$$.json")"
rm "/tmp/all.$$.json"
like "the picture is well-formed and has three bars for each chunk" '^[0-9]+ 5[0-9]$' "$(on c1 'cat /tmp/largest.svg' | python3 -c 'import sys
from xml.etree import ElementTree
root = ElementTree.fromstring(sys.stdin.read())
titles = root.findall(".//{http://www.w3.org/2000/svg}title")
print(root.get("width"), len(titles))')"
number=$(on c1 "$show" | awk '$5 == "1" && $6 == "MiB" { print $1; exit }')
like "one request is shown as text" "in 16 chunks.*960 KiB +64 KiB +ram .*D+.*both at once" "$(on c1 "$show --request $number" | tr '\n' ' ')"
like "a request that does not exist is refused" 'there is no request 9999' "$(on c1 "$show --request 9999" 2>&1)"
like "recordings of two clients without the target are refused" "none of the recordings has a target's side" "$(on c1 'hcablk trace show /tmp/c1.trace' 2>&1)"
