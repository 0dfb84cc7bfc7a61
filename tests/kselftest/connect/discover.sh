#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: a host learns which volumes of a target it may use, and nothing about others; a target that demands keys answers only hosts that prove theirs.
# tier: heart
# turn: 1
# takes: 20

. "${0%/*}/../lib/lib.sh"

# discover GUEST FILTER [OPTION…]: prints the part of the answer that the jq filter selects, in one line.
discover() {
	local guest=$1 filter=$2
	shift 2
	on "$guest" "hcablk discover $target_address --json $*" | jq -r "$filter" | paste -sd' '
}
names='.volumes[].name'
fails() {
	on "$1" "hcablk discover $2 2>&1; [ \$? = ${3:-6} ] || echo 'another exit code'"
}

# Volumes of files: drives are too few.
must on target "modprobe -a ext4 loop; mkfs.ext4 -q -F $drive2 64M && mkdir -p /mnt/files && mount $drive2 /mnt/files &&
	for name in a b c d; do truncate -s 1M /mnt/files/\$name; done"
export_volume a /mnt/files/a --read-only c1
export_volume b /mnt/files/b --mode=cached --wwid=0b6c0d0e-4a5b-4f0e-9c57-7a2f3f6f2d11 c1 c2
export_volume c /mnt/files/c c2
same "a host sees the volumes that it may use" "a b" "$(discover c1 "$names")"
same "another host sees the volumes that it may use" "b c" "$(discover c2 "$names")"
silent "an unknown host sees no volume and no portal" on c1 "hcablk discover $target_address --host-id 11111111-0000-4000-8000-000000000001 --json 2> /dev/null |
	jq -r '$names, .portals[].address'"
same "the answer has mode, size, state and wwid of each volume" "true 1048576 direct available null true | false 1048576 cached available 0b6c0d0e-4a5b-4f0e-9c57-7a2f3f6f2d11 true" \
	"$(discover c1 '[.volumes[] | [.read_only, .size_bytes, .mode, .state, (if .name == "b" then .wwid else null end), .insecure] | map(tostring) | join(" ")] | join(" | ")')"
same "the answer has the address and port at which the target listens" "$target_address:7744" "$(discover c1 '.portals[] | "\(.address):\(.port)"')"
must on target "hcablk target listen --address $target_address --port 7745"
same "the answer has a second port of the same address" "$target_address:7744 $target_address:7745" "$(discover c1 '.portals[] | "\(.address):\(.port)"')"
same "a host can ask at the second port" "a b" "$(discover c1 "$names" --port 7745)"
check "discovery leaves no queue pair" on c1 "$no_queue_pairs"
silent "discovery leaves no configfs directory" on c1 'ls /sys/kernel/config/hcablk_discovery'

must on target "hcablk target evict b $(host_id c1)"
same "an evicted host sees that it is evicted" "available evicted" "$(discover c1 '.volumes[].state')"
must on target "hcablk target admit b $(host_id c1)"
must on target 'hcablk target unexport a'
same "a host does not see a volume that was unexported" "b" "$(discover c1 "$names")"
must on target "hcablk target forbid b $(host_id c1)"
silent "a forbidden host sees no volume and no portal" on c1 "hcablk discover $target_address --json 2> /dev/null | jq -r '$names, .portals[].address'"
must on target "hcablk target allow b $(host_id c1)"

# The list changes all the time: each answer must be a list that existed at one moment.
export_volume a /mnt/files/a c1
ON_SECONDS=200 spawn changing target "until [ -e /tmp/enough ]; do hcablk target unexport a && hcablk target export a /mnt/files/a --insecure --allow $(host_id c1); done > /dev/null 2>&1"
bad=0 complete=0
for _ in 1 2 3 4 5; do
	output=$(discover c1 "$names" 2> /dev/null)
	case $output in
	'b' | 'b a') complete=$((complete + 1)) ;;
	'') ;;
	*) bad=$((bad + 1)) && echo "# a list that never existed: $output" >&2 ;;
	esac
done
must on target 'touch /tmp/enough'
join changing
same "no answer is a list that never existed" 0 $bad
less "some answers are complete lists" 0 $complete

must on c1 'hcablk disconnect --all --force'
same "connect --all connects all volumes" "b a" "$(on c1 "hcablk connect $target_address --all --json" | jq -r '.result.disks[].name' | paste -sd' ')"
same "a second connect --all changes nothing" "false" "$(on c1 "hcablk connect $target_address --all --json" | jq -r '.result.changed')"
same "discovery shows the volumes as connected" "connected connected" "$(discover c1 '.volumes[].state')"
same "the client has two disks" 2 "$(on c1 'ls -d /sys/block/hcablk* | wc -l')"
must on c1 'hcablk disconnect --all'

# With keys.
for volume in a b c; do
	must on target "hcablk target unexport $volume"
done
use_keys c1
export_volume a /mnt/files/a c1
same "a host that proves its key sees the volume" "a" "$(discover c1 "$names")"
same "the volume demands a proof" "false" "$(discover c1 '.volumes[].insecure')"
other=$(on c2 'hcablk key generate target > /dev/null && hcablk key show target')
must on c1 "echo $other | hcablk key add target $target_address"
same "a host with a wrong key of the target gets EKEYREJECTED" "EKEYREJECTED" \
	"$(on c1 "hcablk discover $target_address --json 2>&1" | jq -r '.error.errno')"
must on c1 "rm -r /etc/hcablk/keys/targets/$target_address*"
# c2 has no keys as a host, and uses the id of c1.
silent "a host that does not prove its id sees nothing" \
	on c2 "hcablk discover $target_address --host-id $(host_id c1) --json 2> /dev/null | jq -r '$names, .portals[].address'"
must on target "hcablk target allow a $(host_id c2)"
silent "an allowed host without a key sees nothing" on c2 "hcablk discover $target_address --json 2> /dev/null | jq -r '$names'"

# Mistakes of the caller.
like "discovery reports an address at which no host answers" 'cannot ask the target at 10.77.0.99 port 7744' "$(fails c1 "10.77.0.99 --connect-timeout 2 --insecure")"
like "discovery reports a port at which no target listens" 'no target listens' "$(fails c1 "$target_address --port 7000")"
like "discovery without an address prints the usage" 'discover' "$(fails c1 '' 2)"
silent "failed discovery leaves no configfs directory" on c1 'ls /sys/kernel/config/hcablk_discovery'
must on target 'hcablk target unexport a && umount /mnt/files'
