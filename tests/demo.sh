#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0
#
# Shows what hcablk is for: three machines; a target exports an NVMe drive, two clients share it over RDMA
# with OCFS2, and each reads what the other wrote. Called by `make demo`.

# Outside of the runner: let it boot the guests and run this script.
if [ -z "${HCABLK_CONTROL:-}" ]; then
	exec "$(dirname -- "${BASH_SOURCE[0]}")/run.sh" --demo "$(realpath -- "${BASH_SOURCE[0]}")"
fi

. "${0%/*}/kselftest/lib/lib.sh"
. "${0%/*}/kselftest/lib/p2p.sh"
trap - EXIT

if [ -t 1 ]; then
	bold=$'\e[1m' dim=$'\e[2m' green=$'\e[32m' red=$'\e[31m' plain=$'\e[0m'
else
	bold='' dim='' green='' red='' plain=''
fi
began=$(now_ms)
table=()

seconds() {
	printf '%d.%d' $(($1 / 1000)) $(($1 % 1000 / 100))
}

# note "TEXT" RESULT MILLISECONDS: a line of the table
note() {
	table+=("$(printf '%-56s %-22s %6s s' "$1" "$2" "$(seconds "$3")")")
}

stop() {
	printf '\n%s%s%s\n' "$red" "The demonstration ends here: $*" "$plain"
	echo "Logs: $HCABLK_LOGS"
	exit 1
}

heading() {
	printf '\n%s== %s%s\n' "$bold" "$1" "$plain"
}

# run GUEST COMMAND: shows a command as a user would type it, and its output
run() {
	local guest=$1
	shift
	printf '%s%s#%s %s\n' "$green" "$guest" "$plain" "$*"
	on "$guest" "$*" 2>&1 | sed "s/^/    $dim/; s/\$/$plain/"
	[ "${PIPESTATUS[0]}" = 0 ] || stop "this failed on $guest: $*"
}

# value GUEST COMMAND: prints a command's output, without showing the command
value() {
	on "$@" || stop "this failed on $1: ${*:2}"
}

heading "Three machines with Debian's kernel $(value target uname -r), soft-RoCE between them"
for guest in target c1 c2; do
	run $guest 'rdma link show; rdma resource show'
done

heading "A PCI card of the target lends its memory: the drive's data goes there instead of to RAM"
run target 'modprobe hcablk_pcimem'
run target "echo hcablk_pcimem > $(of "$card")/driver_override; echo $card > /sys/bus/pci/drivers_probe"

heading "The target exports its NVMe drive to the two clients, by their ids"
start=$(now_ms)
# The card has 16 MiB: one client must leave memory for the other.
run target 'hcablk target listen --buffer-mib 4'
drive=/dev/$(value target "basename \$(readlink -f $drive)")
run target "hcablk target export shared $drive --insecure --mode p2p --provider $card --allow $(host_id c1) --allow $(host_id c2)"
run target 'hcablk target list'
note "export $drive as 'shared'" "2 hosts allowed" $(($(now_ms) - start))

heading "Both connect; the volume is a disk of each now"
for guest in c1 c2; do
	start=$(now_ms)
	run $guest "hcablk connect $target_address shared"
	wait_until $guest 10 '[ -b /dev/hcablk0 ]' || stop "$guest has no disk"
	note "$guest connects" "/dev/hcablk0" $(($(now_ms) - start))
done
run target "cat $target/volumes/shared/peers"
run c1 'hcablk list --json'
run c1 'rdma resource show qp'
run c1 'lsblk -o NAME,SIZE,RO,TYPE,MOUNTPOINTS /dev/hcablk0'

heading "c1 makes an OCFS2 file system, both mount it at the same time"
start=$(now_ms)
ocfs2_start c1 c2
run c1 'mkfs.ocfs2 -q -x -N 4 -b 4096 -C 4096 -L shared --cluster-stack=o2cb --cluster-name=c /dev/hcablk0'
note "c1 makes an OCFS2 file system" "done" $(($(now_ms) - start))
start=$(now_ms)
for guest in c1 c2; do
	ON_SECONDS=90 spawn mount-$guest $guest 'mkdir -p /mnt/shared && mount.ocfs2 /dev/hcablk0 /mnt/shared'
	printf '%s%s#%s mount -t ocfs2 /dev/hcablk0 /mnt/shared\n' "$green" $guest "$plain"
done
for guest in c1 c2; do
	join mount-$guest || stop "$guest does not mount"
	run $guest 'df -h /mnt/shared'
done
note "both mount it" "at the same time" $(($(now_ms) - start))

heading "Each reads back what the other wrote"
for pair in "c1 c2" "c2 c1"; do
	read -r writer reader <<< "$pair"
	start=$(now_ms)
	run "$writer" "dd if=/dev/urandom of=/mnt/shared/from-$writer bs=64k count=64 conv=fsync 2>&1 | tail -n 1"
	run "$writer" "sha256sum /mnt/shared/from-$writer"
	run "$reader" "sha256sum /mnt/shared/from-$writer"
	wrote=$(value "$writer" "sha256sum < /mnt/shared/from-$writer")
	got=$(value "$reader" "sha256sum < /mnt/shared/from-$writer")
	[ "$wrote" = "$got" ] || stop "$reader does not read what $writer wrote"
	note "$reader reads what $writer wrote (4 MiB)" "same ${wrote:0:12}" $(($(now_ms) - start))
done
run c2 'ls -l /mnt/shared'

heading "Copied data: that of small reads, and data that soft-RoCE cannot read from a PCI card itself"
start=$(now_ms)
run c1 "grep -E '_bytes|registrations|immediates' $initiator/shared/stats"
run target "grep -E '_bytes|p2p' $target/volumes/shared/stats"
copied=0
moved=0
small=0
for guest in c1 c2; do
	copied=$((copied + $(stat_of $guest $initiator/shared copied_bytes)))
	moved=$((moved + $(stat_of $guest $initiator/shared rdma_bytes)))
	small=$((small + $(stat_of $guest $initiator/shared immediates)))
done
note "$((moved >> 10)) KiB moved by RDMA from and to its place" "not copied" $(($(now_ms) - start))
note "$small reads of up to 4 KiB" "$((copied >> 10)) KiB copied" 0
[ $copied -le $((small * 4096)) ] || stop "more was copied than the data of small reads"
peer=$(stat_of target $target/volumes/shared p2p_bytes)
bounced=$(stat_of target $target/volumes/shared p2p_bounce_bytes)
fallbacks=$(stat_of target $target/volumes/shared p2p_fallbacks)
note "$((peer >> 10)) KiB between drive and PCI card" "$fallbacks requests through RAM" 0
note "of these, copied since there is no HCA with DMA" "$((bounced >> 10)) KiB" 0
[ "$(stat_of target $target/volumes/shared copied_bytes)" = "$bounced" ] || stop "the target copied"
if [ "$peer" = 0 ] || [ "$fallbacks" != 0 ]; then
	stop "the drive's data went through RAM"
fi

heading "Unmount, disconnect, unload"
start=$(now_ms)
for guest in c1 c2; do
	run $guest 'umount /mnt/shared'
done
ocfs2_stop c1 c2
for guest in c1 c2; do
	run $guest 'hcablk disconnect shared'
	run $guest 'modprobe -r hcablk'
done
run target 'hcablk target unexport shared && hcablk target unlisten --all'
run target 'modprobe -r hcablk_target && modprobe -r hcablk_pcimem'
left=0
for guest in target c1 c2; do
	run $guest 'rdma resource show qp; lsmod | grep hcablk || echo "no hcablk module"'
	left=$((left + $(queue_pairs $guest) + $(value $guest 'ls -d /sys/module/hcablk* 2> /dev/null | wc -l')))
done
note "all unmounted and unloaded" "$left things left" $(($(now_ms) - start))
[ $left = 0 ] || stop "queue pairs or modules are left"

heading "What happened"
printf '  %s\n' "${table[@]}"
note "in all" "" $(($(now_ms) - began))
printf '  %s%s%s\n' "$bold" "${table[-1]}" "$plain"
