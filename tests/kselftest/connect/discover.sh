#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: a host learns which volumes of a target it may use, and nothing of others; what is proven is told to who has the keys only.
# tier: heart
# turn: 1
# takes: 20

. "${0%/*}/../lib/lib.sh"

# discover GUEST FILTER [OPTION…]: what jq makes of the answer, in one line.
discover() {
	local guest=$1 filter=$2
	shift 2
	on "$guest" "hcablk discover $target_address --json $*" | jq -r "$filter" | paste -sd' '
}
names='.volumes[].name'
fails() {
	on "$1" "hcablk discover $2 2>&1; [ \$? = ${3:-6} ] || echo 'another exit code'"
}

# Volumes of files: as many as one likes.
must on target "modprobe -a ext4 loop; mkfs.ext4 -q -F $drive2 64M && mkdir -p /mnt/files && mount $drive2 /mnt/files &&
	for name in a b c d; do truncate -s 1M /mnt/files/\$name; done"
export_volume a /mnt/files/a --read-only c1
export_volume b /mnt/files/b --mode=cached --wwid=0b6c0d0e-4a5b-4f0e-9c57-7a2f3f6f2d11 c1 c2
export_volume c /mnt/files/c c2
same "a host is told of what it may use" "a b" "$(discover c1 "$names")"
same "another one of other volumes" "b c" "$(discover c2 "$names")"
silent "a stranger of none" on c1 "hcablk discover $target_address --host-id 11111111-0000-4000-8000-000000000001 --json 2> /dev/null |
	jq -r '$names, .portals[].address'"
same "of each all is told" "true 1048576 direct available null true | false 1048576 cached available 0b6c0d0e-4a5b-4f0e-9c57-7a2f3f6f2d11 true" \
	"$(discover c1 '[.volumes[] | [.read_only, .size_bytes, .mode, .state, (if .name == "b" then .wwid else null end), .insecure] | map(tostring) | join(" ")] | join(" | ")')"
same "and where the target listens" "$target_address:7744" "$(discover c1 '.portals[] | "\(.address):\(.port)"')"
must on target "hcablk target listen --address $target_address --port 7745"
same "at a port of its own, too" "$target_address:7744 $target_address:7745" "$(discover c1 '.portals[] | "\(.address):\(.port)"')"
same "one asks by it" "a b" "$(discover c1 "$names" --port 7745)"
check "no queue pair is left" on c1 "$no_queue_pairs"
silent "nor a directory" on c1 'ls /sys/kernel/config/hcablk_discovery'

must on target "hcablk target evict b $(host_id c1)"
same "a host that is evicted is told so" "available evicted" "$(discover c1 '.volumes[].state')"
must on target "hcablk target admit b $(host_id c1)"
must on target 'hcablk target unexport a'
same "what is not exported any more is not told" "b" "$(discover c1 "$names")"
must on target "hcablk target forbid b $(host_id c1)"
silent "nor what is forbidden" on c1 "hcablk discover $target_address --json 2> /dev/null | jq -r '$names, .portals[].address'"
must on target "hcablk target allow b $(host_id c1)"

# A list that changes all the time: what is told was there at one moment.
export_volume a /mnt/files/a c1
ON_SECONDS=200 spawn changing target "until [ -e /tmp/enough ]; do hcablk target unexport a && hcablk target export a /mnt/files/a --insecure --allow $(host_id c1); done > /dev/null 2>&1"
bad=0 told=0
for _ in 1 2 3 4 5; do
	output=$(discover c1 "$names" 2> /dev/null)
	case $output in
	'b' | 'b a') told=$((told + 1)) ;;
	'') ;;
	*) bad=$((bad + 1)) && echo "# told: $output" >&2 ;;
	esac
done
must on target 'touch /tmp/enough'
join changing
same "no list is told that never was" 0 $bad
less "and lists are told" 0 $told

must on c1 'hcablk disconnect --all --force'
same "all are connected" "b a" "$(on c1 "hcablk connect $target_address --all --json" | jq -r '.result.disks[].name' | paste -sd' ')"
same "once" "false" "$(on c1 "hcablk connect $target_address --all --json" | jq -r '.result.changed')"
same "and told to be" "connected connected" "$(discover c1 '.volumes[].state')"
same "two disks are there" 2 "$(on c1 'ls -d /sys/block/hcablk* | wc -l')"
must on c1 'hcablk disconnect --all'

# With keys.
for volume in a b c; do
	must on target "hcablk target unexport $volume"
done
use_keys c1
export_volume a /mnt/files/a c1
same "who proves itself is told" "a" "$(discover c1 "$names")"
same "that it has to" "false" "$(discover c1 '.volumes[].insecure')"
other=$(on c2 'hcablk key generate target > /dev/null && hcablk key show target')
must on c1 "echo $other | hcablk key add target $target_address"
same "who has not the target's key is told nothing" "EKEYREJECTED" \
	"$(on c1 "hcablk discover $target_address --json 2>&1" | jq -r '.error.errno')"
must on c1 "rm -r /etc/hcablk/keys/targets/$target_address*"
# c2 has no keys as a host, and takes the name of c1.
silent "nor who does not prove itself, whatever its name" \
	on c2 "hcablk discover $target_address --host-id $(host_id c1) --json 2> /dev/null | jq -r '$names, .portals[].address'"
must on target "hcablk target allow a $(host_id c2)"
silent "nor who is allowed and has no key" on c2 "hcablk discover $target_address --json 2> /dev/null | jq -r '$names'"

# What is wrong.
like "nobody is there" 'cannot ask the target at 10.77.0.99 port 7744' "$(fails c1 "10.77.0.99 --connect-timeout 2 --insecure")"
like "nobody listens there" 'no target listens' "$(fails c1 "$target_address --port 7000")"
like "no such option" 'discover' "$(fails c1 '' 2)"
silent "no directory is left" on c1 'ls /sys/kernel/config/hcablk_discovery'
must on target 'hcablk target unexport a && umount /mnt/files'
