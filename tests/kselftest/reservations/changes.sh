#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: two hosts register, reserve, release, preempt and clear; each reservation type admits the right hosts; every acknowledged change survives the target.
# tier: heart
# turn: 10
# takes: 50
# timeout: 500

. "${0%/*}/../lib/lib.sh"

# pr GUEST COMMAND…: runs hcablk-pr on the disk of that guest.
declare -A disks
pr() {
	local guest=$1
	shift
	on "$guest" "hcablk-pr ${disks[$guest]} $*"
}
# Prints what a host may do: "r" if reading succeeds, "w" if writing does; "!" for each that fails with a conflict.
may() {
	on "$1" "
		try() { error=\$(env dd \"\$@\" bs=4k count=1 status=none 2>&1) && echo -n \$ok || case \$error in
			*'nvalid exchange'*) echo -n ! ;;
			*) echo -n \"(\$error)\" ;;
		esac; }
		ok=r; try if=${disks[$1]} of=/dev/null iflag=direct
		ok=w; try if=/dev/zero of=${disks[$1]} oflag=direct conv=notrunc"
}
# The directory of the files is on a drive, so that it survives the target.
state() {
	must on target "modprobe -a ext4 && { blkid $drive2 | grep -q ext4 || mkfs.ext4 -q -F $drive2 64M; } && mkdir -p /mnt/state && mount $drive2 /mnt/state && $(keep /mnt/state/reservations) && modprobe hcablk_target && env echo /mnt/state/reservations > $target/reservations"
}
must on target "dd if=/dev/zero of=$drive2 bs=1M count=1 status=none"
state
for guest in c1 c2; do
	_host_ids[$guest]=$(host_id "$guest")
done
export_volume vol1 "$drive" c1 c2
for guest in c1 c2; do
	connect "$guest" vol1 --ctrl-loss-tmo -1
	disks[$guest]=$device
done

same "nobody is registered" "0:" "$(pr c1 keys)"
same "nothing is reserved" "0 0" "$(pr c1 reservation)"
same "a host that is not registered cannot reserve" conflict "$(pr c1 reserve 1 1)"
check "a host registers" pr c1 register 0 11
check "a second host registers" pr c2 register 0 22
same "registering with a wrong old key is refused" conflict "$(pr c2 register 11 33)"
check "register-and-ignore needs no old key" pr c2 ignore 22
same "both hosts see both keys" "3: 11 22 3: 11 22" "$(pr c1 keys) $(pr c2 keys)"

wanted=(- "rw r! r!" "rw !! !!" "rw rw r!" "rw rw !!" "rw rw r!" "rw rw !!")
for type in 1 2 3 4 5 6; do
	must pr c1 reserve 11 $type > /dev/null
	registrant=$(may c2)
	must pr c2 register 22 0 > /dev/null
	same "type $type: holder, registrant, other" "${wanted[type]}" "$(may c1) $registrant $(may c2)"
	must pr c2 register 0 22 > /dev/null
	must pr c1 release 11 $type > /dev/null
done
same "an unknown type is refused" "Invalid argument" "$(pr c1 reserve 11 7)"
same "all hosts may read and write after the release" "rw rw" "$(may c1) $(may c2)"

check "a host reserves" pr c1 reserve 11 1
same "another host cannot reserve, too" conflict "$(pr c2 reserve 22 1)"
same "another host cannot release the holder's reservation" "11 1" "$(pr c2 release 22 1; pr c2 reservation)"
check "another host preempts the holder" pr c2 preempt 22 11 3
same "the preempting host holds the reservation" "22 3" "$(pr c2 reservation)"
like "the preempted host is not registered any more" ": 22\$" "$(pr c2 keys)"
must wait_until c1 60 "[ \$(cat $initiator/vol1/state) = live ]"
same "the preempted host may read but not write" "r!" "$(may c1)"
must pr c1 register 0 11 > /dev/null

keys=$(pr c2 keys) held=$(pr c2 reservation)
must on target 'hcablk target unexport --force vol1 && hcablk target unlisten --all && rmmod hcablk_target'
must on target "modprobe hcablk_target && env echo /mnt/state/reservations > $target/reservations"
export_volume vol1 "$drive" c1 c2
for guest in c1 c2; do
	must wait_until $guest 60 "[ \$(cat $initiator/vol1/state) = live ]"
done
same "keys and reservation are the same after the module was reloaded" "$keys $held" "$(pr c1 keys) $(pr c1 reservation)"
must vm kill target
must vm start target
state
export_volume vol1 "$drive" c1 c2
for guest in c1 c2; do
	must wait_until $guest 120 "[ \$(cat $initiator/vol1/state) = live ]"
done
same "keys and reservation are the same after the target's machine was killed" "$keys $held" "$(pr c1 keys) $(pr c1 reservation)"
check "a host clears" pr c1 clear 11
same "nothing is reserved after the clear, and all may read and write" "0 0 rw rw" "$(pr c2 reservation) $(may c1) $(may c2)"
like "no key is left after the clear" ":\$" "$(pr c2 keys)"

must on target 'hcablk target unexport --force vol1'
refused() {
	on target "hcablk target export vol1 $drive --insecure 2>&1"
}
must on target 'umount /mnt/state && mkdir -p /mnt/state/reservations'
like "the volume is not exported while the file system of its reservations is not mounted" "no readable file .hcablk-reservations; is its file system mounted" "$(refused)"
must on target "rmdir /mnt/state/reservations && env echo > $target/reservations"
like "the volume is not exported without a directory for its reservations" "reservations cannot be kept: no directory is set" "$(refused)"
must on target "env echo /nowhere/at/all > $target/reservations"
like "the volume is not exported while the directory does not exist" "directory does not exist; is its file system mounted" "$(refused)"
same "a refused export leaves nothing in configfs" 0 "$(on target "ls $target/volumes | wc -l")"
export_volume vol1 "$drive" --no-reservations c1 c2
must wait_until c1 60 "[ \$(cat $initiator/vol1/state) = live ]"
same "a host cannot register without a directory" "Operation not supported" "$(pr c1 register 0 11)"
check "the log gives the reason" in_log target "refused a change of reservations: its drive has no wwid, .* or the directory"
for guest in c1 c2; do
	must on $guest 'hcablk disconnect --force vol1'
done
must on target 'hcablk target unexport vol1'
