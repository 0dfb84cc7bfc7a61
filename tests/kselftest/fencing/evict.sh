#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: when a host is evicted nothing of it reaches the drive any more, until it is admitted; others do not notice.
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
# The part of the volume that c1's load writes to, as it is on the drive.
on_drive() {
	on target "dd if=/dev/mapper/door bs=1M count=256 iflag=direct 2> /dev/null | md5sum"
}
victim=$(host_id c1) other=$(host_id c2)

# What the target is to remember over its own end is on a drive.
must on target "modprobe -a dm_mod ext4 && mkfs.ext4 -q -F $drive2 64M && mkdir -p /mnt/state && mount $drive2 /mnt/state && $(keep /mnt/state/reservations) && rm -rf /var/lib/hcablk && mkdir -p /var/lib && ln -s /mnt/state /var/lib/hcablk"
gate() {
	must on target "modprobe dm_mod && printf '0 2000000 linear $drive 0\n' | dmsetup create gate && dmsetup mknodes &&
		echo '0 2000000 linear /dev/mapper/gate 0' | dmsetup create door && dmsetup mknodes"
}
gate
export_volume vol1 /dev/mapper/door c1 c2
# Its connection may break on a busy machine; it does not outlive the target.
connect c2 vol1 --ctrl-loss-tmo $((30 * slow))
share=$device
connect c1 vol1 --ctrl-loss-tmo -1

start_load one c1 "$device" --size=100M
start_load well c2 "$share" --offset=300M --size=100M
check "a host is evicted under I/O" evict vol1 "$victim"
before=$(on_drive)
ends_within one 30000 "the host is evicted"
check "its disk goes, though it waits for ever for a lost connection" state_is c1 failed
like "the reason is told" "evicted" "$(on c1 "cat $initiator/vol1/error")"
same "nothing of it has come since" "$before" "$(on_drive)"
check "the other host alone has sessions" wait_until target 30 "[ \"\$(cut -d' ' -f1 $target/volumes/vol1/clients | sort -u)\" = $other ]"
must on c1 'hcablk disconnect vol1'
like "it is not let in" "evicted" "$(on c1 "hcablk connect $target_address vol1" 2>&1)"
check "it is evicted once more" evict vol1 "$victim"
same "which changes nothing" "$victim" "$(on target "cat $target/volumes/vol1/evicted")"
same "the command lists it" "$victim" "$(on target 'hcablk target list --json' | jq -r '.volumes[0].evicted[].host')"

must vm kill target
must vm start target
must on target "modprobe ext4 && mkdir -p /mnt/state && mount $drive2 /mnt/state && rm -rf /var/lib/hcablk && mkdir -p /var/lib && ln -s /mnt/state /var/lib/hcablk"
join well
gate
export_volume vol1 /dev/mapper/door c1 c2
like "the target was started again: it is not let in" "evicted" "$(on c1 "hcablk connect $target_address vol1" 2>&1)"
must on target "hcablk target admit vol1 $victim"
must wait_until c2 60 '! [ -e /sys/kernel/config/hcablk/vol1 ] || hcablk disconnect vol1'
connect c1 vol1
pass "it is admitted: it is let in"
silent "nobody is evicted" on target "cat $target/volumes/vol1/evicted"

# A write that the drive has, and does not finish.
must on target 'dmsetup suspend --nolockfs gate'
spawn held c1 "dd if=/dev/zero of=$device bs=64k count=1 oflag=direct conv=notrunc status=none"
must drive_holds write
like "a host whose write the drive has is not evicted in 3 seconds" "has not finished|may still" "$(evict --timeout 3 vol1 "$victim" 2>&1)"
refuse "the command says that it has failed" evict --timeout 1 vol1 "$victim"
same "the host is evicted, and what it had begun is left" "$victim draining" "$(on target "cat $target/volumes/vol1/evicted")"
ON_SECONDS=60 spawn evicting target "exec hcablk target evict vol1 $victim"
must wait_until target 30 'pidof hcablk'
must on target '[ -d /proc/$(pidof hcablk) ] && dmsetup resume gate'
check "when the drive has finished it, the host is evicted" join evicting
same "nothing of it is left" "$victim" "$(on target "cat $target/volumes/vol1/evicted")"
refuse "its write has failed" join held
must on target "hcablk target admit vol1 $victim"
must on c1 'hcablk disconnect --if-exists vol1'

# A host that sleeps through its eviction. What is sent to it meanwhile is dropped, as by a network; QEMU would wait.
connect c1 vol1 --ctrl-loss-tmo -1
start_load asleep c1 "$device" --size=100M
must vm link-down target 0
must vm pause c1
check "a host that sleeps is evicted" evict vol1 "$victim"
before=$(on_drive)
must vm resume c1
must vm link-up target 0
ends_within asleep 60000 "it wakes"
same "it writes nothing" "$before" "$(on_drive)"
check "its disk is gone" state_is c1 failed
must on c1 'hcablk disconnect vol1'
must on target "hcablk target admit vol1 $victim"

# Limits, and what is wrong.
refuse "a volume that is not there" evict nothing "$victim"
like "no UUID" "Invalid argument" "$(on target "env echo c1 > $target/volumes/vol1/evicted" 2>&1)"
like "who is not evicted is not admitted" "No such file" "$(on target "env echo $victim > $target/volumes/vol1/admit" 2>&1)"
same "so many hosts are evicted at most" "64 evicted, then No space left on device" "$(on target "
	n=0
	while [ \$n -lt 100 ]; do
		error=\$(env printf '11111111-0000-4000-8000-%012d' \$((n + 1)) 2>&1 > /tmp/id; env cp /tmp/id $target/volumes/vol1/evicted 2>&1) || break
		n=\$((n + 1))
	done
	echo \"\$n evicted, then \${error##*: }\"")"
connect c1 vol1
pass "none of them is the host"
disconnect c1 vol1
must on target 'hcablk target unexport vol1 && dmsetup remove door && dmsetup remove gate && rm /var/lib/hcablk && umount /mnt/state'
