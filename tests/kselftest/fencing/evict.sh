#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: no request of an evicted host reaches the drive until the host is admitted; other hosts do not notice.
# turn: 10
# takes: 160
# waits: yes
# timeout: 1100

. "${0%/*}/../lib/lib.sh"

evict() {
	on target "hcablk target evict $*"
}
state_is() {
	wait_until "$1" 60 "[ \$(cat $initiator/vol1/state) = $2 ]"
}
# on_drive: prints a checksum of the drive's part that c1's load writes.
on_drive() {
	on target "dd if=/dev/mapper/door bs=1M count=256 iflag=direct 2> /dev/null | md5sum"
}
victim=$(host_id c1) other=$(host_id c2)

# The target's record of evictions must survive a restart of its machine: it is on a drive.
must on target "modprobe -a dm_mod ext4 && mkfs.ext4 -q -F $drive2 64M && mkdir -p /mnt/state && mount $drive2 /mnt/state && $(keep /mnt/state/reservations) && rm -rf /var/lib/hcablk && mkdir -p /var/lib && ln -s /mnt/state /var/lib/hcablk"
gate() {
	must on target "modprobe dm_mod && printf '0 2000000 linear $drive 0\n' | dmsetup create gate && dmsetup mknodes &&
		echo '0 2000000 linear /dev/mapper/gate 0' | dmsetup create door && dmsetup mknodes"
}
gate
export_volume vol1 /dev/mapper/door c1 c2
# c2's disk must survive a broken connection on a busy machine, but not the target's restart.
connect c2 vol1 --ctrl-loss-tmo $((30 * slow))
share=$device
connect c1 vol1 --ctrl-loss-tmo -1

start_load one c1 "$device" --size=100M
start_load well c2 "$share" --offset=300M --size=100M
check "a host is evicted under I/O" evict vol1 "$victim"
before=$(on_drive)
ends_within one 30000 "the host is evicted"
check "the evicted host's disk is removed although its ctrl_loss_tmo is infinite" state_is c1 failed
like "the disk's error has the reason" "evicted" "$(on c1 "cat $initiator/vol1/error")"
same "no write of the evicted host has reached the drive since" "$before" "$(on_drive)"
check "only the other host has sessions" wait_until target 30 "[ \"\$(cut -d' ' -f1 $target/volumes/vol1/clients | sort -u)\" = $other ]"
must on c1 'hcablk disconnect vol1'
like "the evicted host cannot connect" "evicted" "$(on c1 "hcablk connect $target_address vol1" 2>&1)"
check "a second eviction of the host succeeds" evict vol1 "$victim"
same "the second eviction changes nothing" "$victim" "$(on target "cat $target/volumes/vol1/evicted")"
same "hcablk target list shows the evicted host" "$victim" "$(on target 'hcablk target list --json' | jq -r '.volumes[0].evicted[].host')"

must vm kill target
must vm start target
must on target "modprobe ext4 && mkdir -p /mnt/state && mount $drive2 /mnt/state && rm -rf /var/lib/hcablk && mkdir -p /var/lib && ln -s /mnt/state /var/lib/hcablk"
join well
gate
export_volume vol1 /dev/mapper/door c1 c2
like "the host is still evicted after a restart of the target" "evicted" "$(on c1 "hcablk connect $target_address vol1" 2>&1)"
must on target "hcablk target admit vol1 $victim"
must wait_until c2 60 '! [ -e /sys/kernel/config/hcablk/vol1 ] || hcablk disconnect vol1'
connect c1 vol1
pass "the admitted host connects"
silent "no host is evicted any more" on target "cat $target/volumes/vol1/evicted"

# The drive has a write, and does not finish it.
must on target 'dmsetup suspend --nolockfs gate'
spawn held c1 "dd if=/dev/zero of=$device bs=64k count=1 oflag=direct conv=notrunc status=none"
must drive_holds write
like "evict reports after 3 s that the drive has not finished the host's write" "has not finished|may still" "$(evict --timeout 3 vol1 "$victim" 2>&1)"
refuse "evict fails when its timeout ends before the drive has finished" evict --timeout 1 vol1 "$victim"
same "the host is evicted and still draining" "$victim draining" "$(on target "cat $target/volumes/vol1/evicted")"
ON_SECONDS=60 spawn evicting target "exec hcablk target evict vol1 $victim"
must wait_until target 30 'pidof hcablk'
must on target '[ -d /proc/$(pidof hcablk) ] && dmsetup resume gate'
check "evict succeeds when the drive has finished the write" join evicting
same "the host is not draining any more" "$victim" "$(on target "cat $target/volumes/vol1/evicted")"
refuse "the evicted host's write has failed" join held
must on target "hcablk target admit vol1 $victim"
must on c1 'hcablk disconnect --if-exists vol1'

# A host that sleeps during its eviction. The network drops what is sent to it meanwhile; QEMU would delay it.
connect c1 vol1 --ctrl-loss-tmo -1
start_load asleep c1 "$device" --size=100M
must vm link-down target 0
must vm pause c1
check "a sleeping host is evicted" evict vol1 "$victim"
before=$(on_drive)
must vm resume c1
must vm link-up target 0
ends_within asleep 60000 "the evicted host wakes"
same "the woken host's writes do not reach the drive" "$before" "$(on_drive)"
check "the woken host's disk has failed" state_is c1 failed
must on c1 'hcablk disconnect vol1'
must on target "hcablk target admit vol1 $victim"

# Limits and mistakes.
refuse "an eviction from an unknown volume is refused" evict nothing "$victim"
like "an eviction of a malformed host id is refused" "Invalid argument" "$(on target "env echo c1 > $target/volumes/vol1/evicted" 2>&1)"
like "a host that is not evicted cannot be admitted" "No such file" "$(on target "env echo $victim > $target/volumes/vol1/admit" 2>&1)"
same "at most 64 hosts can be evicted from a volume" "64 evicted, then No space left on device" "$(on target "
	n=0
	while [ \$n -lt 100 ]; do
		error=\$(env printf '11111111-0000-4000-8000-%012d' \$((n + 1)) 2>&1 > /tmp/id; env cp /tmp/id $target/volumes/vol1/evicted 2>&1) || break
		n=\$((n + 1))
	done
	echo \"\$n evicted, then \${error##*: }\"")"
connect c1 vol1
pass "a host that is not among them connects"
disconnect c1 vol1
must on target 'hcablk target unexport vol1 && dmsetup remove door && dmsetup remove gate && rm /var/lib/hcablk && umount /mnt/state'
