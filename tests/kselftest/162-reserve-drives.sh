#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: reservations and their file are one drive's whatever is enabled first, a change that was refused does not come back, nothing of an evicted host changes them, and a file system that hangs holds up its changes only.
# group: reserve
# turn: 19
# takes: 40
# timeout: 480

. "${0%/*}/lib.sh"

one=6f0c2b62-5f5e-4c0e-9d57-0b8f3e9b0b01
two=6f0c2b62-5f5e-4c0e-9d57-0b8f3e9b0b02
# pr GUEST COMMAND…: on the disk of that guest.
declare -A disks
pr() {
	on "$1" "hcablk-pr ${disks[$1]} ${*:2}"
}
# dm NAME TABLE: makes or changes a device.
dm() {
	must on target "if dmsetup info $1 > /dev/null 2>&1; then
			dmsetup suspend $1 && printf '$2\n' | dmsetup load $1 && dmsetup resume $1
		else
			printf '$2\n' | dmsetup create $1 && dmsetup mknodes
		fi"
}
# export_of VOLUME PART WWID: prints what the command says.
export_of() {
	on target "hcablk target export $1 /dev/mapper/$2 --insecure --wwid $3 --allow ${_host_ids[c1]} --allow ${_host_ids[c2]} 2>&1"
}
unexport() {
	must on target "hcablk target unexport --force $1"
}
live() {
	must wait_until "$1" 60 "[ \$(cat $initiator/vol1/state) = live ]"
}
for guest in c1 c2; do
	_host_ids[$guest]=$(host_id "$guest")
done

must on target "modprobe -a dm_mod ext4 && dd if=/dev/zero of=$drive2 bs=1M count=1 status=none"
dm kept "0 16384 linear $drive2 0"
dm part1 "0 131072 linear $drive 0"
dm part2 "0 131072 linear $drive 131072"
state="/mnt/state/reservations"
must on target "mkfs.ext4 -q -F -b 4096 -O ^has_journal /dev/mapper/kept && mkdir -p /mnt/state && mount /dev/mapper/kept /mnt/state && $(keep $state) && modprobe hcablk_target && env echo $state > $target/reservations"

# Two drives of one wwid would write the same file.
check "a drive is exported" export_of vol1 part1 $one
like "another one by its wwid is not" "another drive is exported by its wwid" "$(export_of vol2 part2 $one)"
check "by its own it is" export_of vol2 part2 $two
unexport vol2
connect c1 vol1 --ctrl-loss-tmo -1
disks[c1]=$device
check "a host registers" pr c1 register 0 11

# Whatever is enabled first: reservations of one wwid are not left out for another one.
unexport vol1
check "its drive is exported by another wwid" export_of vol2 part1 $two
like "by the one that has reservations it is not then" "reservations, and its drive" "$(export_of vol1 part1 $one)"
unexport vol2
check "the other way" export_of vol1 part1 $one
like "the other one is not" "reservations by another wwid" "$(export_of vol2 part1 $two)"
live c1
like "what was registered is" ": 11\$" "$(pr c1 keys)"
must pr c1 register 11 0 > /dev/null
check "when nobody is, it is exported by another wwid" export_of vol2 part1 $two
same "nobody registers" "Operation not supported" "$(pr c1 register 0 11)"
unexport vol2
check "until the other volume is gone" pr c1 register 0 11
unexport vol1
must on c1 'hcablk disconnect --force vol1'

# The first image of a new file is written, the second one cannot be: which blocks these have is seen by what they contain.
three=6f0c2b62-5f5e-4c0e-9d57-0b8f3e9b0b03
must on target "for place in 0 1; do printf '\nhcablk-place-%d\n' \$place; dd if=/dev/zero bs=4080 count=1 status=none; done > $state/$three && sync"
# in_blocks FIRST COUNT TEXT: of the file system.
block=$(on target "in_blocks() { dd if=/dev/mapper/kept bs=4k skip=\$1 count=\$2 iflag=direct status=none | grep -aq \$3; }
	first=0 count=2048
	while [ \$count -gt 1 ]; do
		half=\$((count / 2))
		in_blocks \$first \$half hcablk-place-0 || first=\$((first + half))
		count=\$half
	done
	in_blocks \$first 1 hcablk-place-0 && in_blocks \$((first + 1)) 1 hcablk-place-1 && echo \$first") || die "the blocks of the file are found"
must on target "dd if=/dev/zero of=$state/$three bs=8k count=1 conv=notrunc,fsync status=none"
check "its drive is exported" export_of vol1 part2 $three
connect c1 vol1 --ctrl-loss-tmo -1
disks[c1]=$device
sector=$((block * 8))
dm kept "0 $sector linear $drive2 0\n$sector 8 error\n$((sector + 8)) $((16384 - sector - 8)) linear $drive2 $((sector + 8))"
same "its first image cannot be written: it is refused" "Input/output error" "$(pr c1 register 0 33)"
check "the log says so" in_log target "a reservation cannot be kept in its file"
like "nobody is registered" ":\$" "$(pr c1 keys)"
unexport vol1
dm kept "0 16384 linear $drive2 0"
must on target "env echo > $target/reservations; umount /mnt/state && mount /dev/mapper/kept /mnt/state && env echo $state > $target/reservations"
check "the target begins again" export_of vol1 part2 $three
live c1
like "nobody is registered then, either" ":\$" "$(pr c1 keys)"
check "now it is kept" pr c1 register 0 33
unexport vol1
check "and the target begins again" export_of vol1 part2 $three
live c1
like "it is registered" ": 33\$" "$(pr c1 keys)"

# Neither image can be written: what the page cache has of the change is not taken for what the file system's drive has.
letters=5425512962855750475 # KKKKKKKK
durable() {
	on target "dd if=$drive2 bs=4k skip=$block count=2 iflag=direct status=none | grep -aq KKKKKKKK"
}
must pr c1 register 33 $letters
must durable
dm kept "0 $sector linear $drive2 0\n$sector 16 error\n$((sector + 16)) $((16384 - sector - 16)) linear $drive2 $((sector + 16))"
same "a change that cannot be kept is refused" "Input/output error" "$(pr c1 register $letters 34)"
unexport vol1
dm kept "0 16384 linear $drive2 0"
check "the target begins again" export_of vol1 part2 $three
live c1
like "it is not made" ": $letters\$" "$(pr c1 keys)"
check "another one can be" pr c1 register $letters 33
check "it is written beside the image that is durable" durable

# The file system hangs.
connect c2 vol1 --ctrl-loss-tmo -1
disks[c2]=$device
must on target 'fsfreeze --freeze /mnt/state'
ON_SECONDS=100 spawn changing c2 "hcablk-pr ${disks[c2]} register 0 22"
must wait_until target 30 "cat /proc/[0-9]*/comm | grep -q '+hcablk_changes'"
ON_SECONDS=20
like "meanwhile the keys are read" ": 33\$" "$(pr c1 keys)"
same "the directory is shown" $state "$(on target "cat $target/reservations")"
check "a volume of its drive is exported" export_of vol2 part2 $three
check "and is no longer" on target 'hcablk target unexport vol2'
check "its volume is no longer exported" on target 'hcablk target unexport --force vol1'
check "it is exported again" export_of vol1 part2 $three
ON_SECONDS=120
must on target 'fsfreeze --unfreeze /mnt/state'
check "when it goes on the change is made" join changing
live c1
like "once" ": 22 33\$" "$(pr c1 keys)"

# A host that is evicted: what it has asked for is not made behind that, and what had begun is waited for.
must on target 'fsfreeze --freeze /mnt/state'
ON_SECONDS=100 spawn changing c1 "hcablk-pr ${disks[c1]} register 33 44"
must wait_until target 30 "cat /proc/[0-9]*/comm | grep -q '+hcablk_changes'"
ON_SECONDS=100 spawn asking c2 "hcablk-pr ${disks[c2]} abort 22 33 3"
must wait_until c2 30 'cat /proc/[0-9]*/comm | grep -q hcablk-pr'
ON_SECONDS=20
check "a host is evicted while another one's change is being made" on target "hcablk target evict vol1 ${_host_ids[c2]} --timeout 10"
ON_SECONDS=120
must on target 'fsfreeze --unfreeze /mnt/state'
check "that is made" join changing
refuse "the evicted host's is not" join asking
like "nobody's registration has ended" ": 22 44\$" "$(pr c1 keys)"
must on c2 'hcablk disconnect --force vol1'
must on target "hcablk target admit vol1 ${_host_ids[c2]}"
connect c2 vol1 --ctrl-loss-tmo -1
disks[c2]=$device

must on target 'fsfreeze --freeze /mnt/state'
ON_SECONDS=100 spawn changing c2 "hcablk-pr ${disks[c2]} abort 22 44 3"
must wait_until target 30 "cat /proc/[0-9]*/comm | grep -q '+hcablk_changes'"
ON_SECONDS=20
like "a host whose change is being made is not evicted" "a change of reservations, may still land" "$(on target "hcablk target evict vol1 ${_host_ids[c2]} --timeout 3 2>&1")"
same "it is shown as draining" "${_host_ids[c2]} draining" "$(on target "cat $target/volumes/vol1/evicted")"
ON_SECONDS=120
must on target 'fsfreeze --unfreeze /mnt/state'
check "it is when that is made" on target "hcablk target evict vol1 ${_host_ids[c2]}"
same "nothing of it is left" "${_host_ids[c2]}" "$(on target "cat $target/volumes/vol1/evicted")"
live c1
like "the change was made before" ": 22\$" "$(pr c1 keys)"
join changing || true

for guest in c1 c2; do
	must on $guest 'hcablk disconnect --force vol1'
done
must on target 'hcablk target unexport vol1; umount /mnt/state; for name in kept part1 part2; do dmsetup remove $name; done'
