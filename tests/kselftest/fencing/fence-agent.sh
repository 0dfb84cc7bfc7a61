#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: when the fence agent says that a node is off, by either method, nothing of it reaches the drive until it is let in again.
# turn: 2
# takes: 250
# waits: yes
# timeout: 1800

. "${0%/*}/../lib/lib.sh"

# agent GUEST NAME=VALUE…: the agent with these lines; prints its exit code, and what it said to the log.
agent() {
	local guest=$1
	shift
	on "$guest" "printf '%s\n' ${*@Q} | ${agent_by:-} ${agent_path:-}fence_hcablk > /tmp/agent.said 2>&1; code=\$?
		cat /tmp/agent.said >&2; echo \$code"
}
said() {
	on "$1" 'cat /tmp/agent.said'
}
# The part of the volume that c2's load writes to, as it is on the drive.
on_drive() {
	on target "dd if=/dev/mapper/door bs=1M count=64 iflag=direct 2> /dev/null | md5sum"
}
is_live() {
	wait_until "$1" 60 "[ \$(cat $initiator/vol1/state) = live ]"
}
# write GUEST: one write; prints why it failed.
write() {
	on "$1" "env dd if=/dev/zero of=/dev/hcablk0 bs=4k count=1 oflag=direct conv=notrunc status=none 2>&1"
}
conflict='Invalid exchange'

check "what it tells of itself is XML" on c1 "fence_hcablk -o metadata | xmllint --noout - &&
	[ \$(fence_hcablk -o metadata | grep -cE '<action name=\"(on|off|status|monitor|metadata)\"') = 5 ]"
check "its options are those of fencing.py, and its own" on c1 "fence_hcablk -o metadata > /tmp/metadata &&
	for name in plug ip username identity_file use_sudo power_timeout disable_timeout method devices volume; do
		grep -q \"<parameter name=\\\"\$name\\\"\" /tmp/metadata || exit 1; done"
same "an option that is none is refused" 1 "$(on c1 'fence_hcablk --colour red > /dev/null; echo $?')"
reserve=(method=reserve devices=/dev/hcablk0)
for wrong in "action=reboot plug=c2" "action=off" "action=off plug=c2 method=shoot" "action=off plug=c2 devices=" \
	"action=off plug=c2 devices=/dev/none" "action=off plug=c2 devices=/dev/null" "action=status plug=c2 power_timeout=soon" \
	"action=off plug=c2 method=evict volume=vol1" "action=off plug=$(host_id c2) method=evict volume=a;b'c"; do
	# shellcheck disable=SC2086 # words
	same "refused: $wrong" 1 "$(agent c1 "${reserve[@]}" $wrong)"
	like "with a reason: $wrong" "ERROR: [a-zA-Z/]" "$(said c1)"
done

must on target "modprobe -a dm_mod && printf '0 2000000 linear $drive 0\n' | dmsetup create gate && dmsetup mknodes &&
	echo '0 2000000 linear /dev/mapper/gate 0' | dmsetup create door && dmsetup mknodes &&
	$(keep /run/reservations) && modprobe hcablk_target && env echo /run/reservations > $target/reservations"
export_volume vol1 /dev/mapper/door c1 c2
for guest in c1 c2; do
	connect "$guest" vol1 --ctrl-loss-tmo -1
	same "$guest: all that it needs is there" 0 "$(agent "$guest" action=monitor "${reserve[@]}")"
	same "$guest: the options can be right" 0 "$(agent "$guest" action=validate-all "${reserve[@]}" pcmk_host_list=c1)"
done
like "what it does not know is told" 'pcmk_host_list' "$(said c2)"
same "who is not registered fences nobody" 1 "$(agent c1 action=off plug=c2 "${reserve[@]}")"
like "it says so" 'not registered' "$(said c1)"
same "a node is let in by itself only" 1 "$(agent c1 action=on plug=c2 "${reserve[@]}")"
for guest in c1 c2; do
	same "$guest is let in" 0 "$(agent "$guest" action=on plug="$guest" nodename="$guest" "${reserve[@]}")"
done
same "once more" 0 "$(agent c2 action=on plug=c2 "${reserve[@]}")"
same "it is on" "0 Status: ON" "$(agent c1 action=status plug=c2 "${reserve[@]}") $(said c1)"
same "another one is not" "2 Status: OFF" "$(agent c1 action=status plug=c9 "${reserve[@]}") $(said c1)"
same "no node fences itself" 1 "$(agent c1 action=off plug=c1 "${reserve[@]}")"

start_load victim c2 /dev/hcablk0 --size=64M
same "a node that writes is fenced" 0 "$(agent c1 action=off plug=c2 "${reserve[@]}")"
before=$(on_drive)
refuse "its writes fail" join victim
same "nothing of it has come since" "$before" "$(on_drive)"
same "it is off" "2 Status: OFF" "$(agent c1 action=status plug=c2 "${reserve[@]}") $(said c1)"
must is_live c2
like "what it writes now conflicts" "$conflict" "$(write c2)"
silent "what the other one writes does not" write c1
same "it is fenced once more" 0 "$(agent c1 action=off plug=c2 "${reserve[@]}")"
same "it is let in again" 0 "$(agent c2 action=on plug=c2 "${reserve[@]}")"
silent "and writes" write c2

# A write that the drive has, and does not finish: a preemption that was given up is not taken for one that has returned.
must on target 'dmsetup suspend --nolockfs gate'
ON_SECONDS=300 spawn held c2 "dd if=/dev/zero of=/dev/hcablk0 bs=64k count=1 oflag=direct conv=notrunc status=none"
must drive_holds write
same "a node whose write the drive has is not fenced" 1 "$(agent c1 action=off plug=c2 "${reserve[@]}")"
like "it says so" 'preempt-abort .* failed' "$(said c1)"
same "nor is it when that is repeated" 124 "$(agent_by='timeout 10' agent c1 action=off plug=c2 "${reserve[@]}")"
must on target 'dmsetup resume gate'
same "it is when the drive has finished it" 0 "$(agent c1 action=off plug=c2 "${reserve[@]}")"
join held
must is_live c2
same "all are let in" 0 "$(agent c2 action=on plug=c2 "${reserve[@]}")"

same "blkpr is found by whoever has a short PATH" 0 "$(agent_by='env PATH=/usr/bin:/bin' agent_path=/usr/sbin/ agent c1 action=validate-all "${reserve[@]}")"

victim=$(host_id c2)
evict=(method=evict volume=vol1)
same "the target has what evicting needs" 0 "$(agent target action=monitor "${evict[@]}")"
same "a node's name is no mistake before pcmk_host_map is applied" 0 "$(agent target action=validate-all plug=c2 "${evict[@]}")"
same "not of a volume that is not there" 1 "$(agent target action=monitor method=evict volume=vol2)"
same "it lists the hosts" 0 "$(agent target action=list "${evict[@]}")"
like "this one, too" "$victim," "$(said target)"
same "it is on" "0 Status: ON" "$(agent target action=status plug="$victim" "${evict[@]}") $(said target)"
start_load victim c2 /dev/hcablk0 --size=64M
same "a host that writes is evicted" 0 "$(agent target action=off plug="$victim" "${evict[@]}")"
before=$(on_drive)
refuse "its writes fail" join victim
same "nothing of it has come since" "$before" "$(on_drive)"
same "it is off" "2 Status: OFF" "$(agent target action=status plug="$victim" "${evict[@]}") $(said target)"
must on c2 'hcablk disconnect vol1'
refuse "it is not let in" on c2 "hcablk connect $target_address vol1"
# This ssh runs the command here, for one of two targets; it does not reach the other target.
must on target "mkdir -p /tmp/bin && cat > /tmp/bin/ssh << 'END' && chmod 755 /tmp/bin/ssh
#!/bin/sh
echo \"\$*\" >> /tmp/ssh.log
[ ! -e /tmp/hang ] || exec sleep 1000
while [ \$1 != -- ]; do shift; done
[ \$2 = 10.77.0.1 ] || { echo 'ssh: connect to host: No route to host' >&2; exit 255; }
exec sh -c \"\$3\"
END
printf '#!/bin/sh\n[ \$1 = -n ] && shift && echo \"\$*\" >> /tmp/sudo.log && exec \"\$@\"\n' > /tmp/bin/sudo && chmod 755 /tmp/bin/sudo && : > /tmp/key"
evict+=(username=fencer identity_file=/tmp/key ssh_path=/tmp/bin/ssh)
same "it is let in by ssh" 0 "$(agent target action=on plug="$victim" ip="$target_address" "${evict[@]}")"
like "by the name and key that were given" "-l fencer -i /tmp/key -- 10.77.0.1 hcablk target admit" "$(on target 'cat /tmp/ssh.log')"
connect c2 vol1
same "one target of two that is not reached is a failure" 1 \
	"$(agent target action=off plug="$victim" ip="$target_address,10.77.0.9" "${evict[@]}")"
like "it says which" '10.77.0.9 failed.*No route' "$(said target)"
same "the other one has evicted it all the same" "$victim" "$(on target "cut -d' ' -f1 $target/volumes/vol1/evicted")"
# Several volumes at one target.
evicted="cut -d' ' -f1 $target/volumes/vol1/evicted $target/volumes/vol2/evicted"
export_volume vol2 "$drive2" c1 c2
must on target "rm /tmp/ssh.log"
both=("${evict[@]}" "volume=vol1,vol2" "ip=$target_address")
same "it is let in to two volumes" 0 "$(agent target action=on plug="$victim" "${both[@]}")"
silent "by both" on target "$evicted"
same "it is evicted from both" 0 "$(agent target action=off plug="$victim" "${both[@]}")"
same "that is so" "$victim $victim" "$(on target "$evicted" | xargs)"
same "each time the target was logged in to once" 2 "$(on target 'wc -l < /tmp/ssh.log')"
same "when one of two volumes fails, so does the agent" 1 "$(agent target action=off plug="$victim" "${both[@]}" volume=vol2,none)"
like "it says why" 'none' "$(said target)"
same "it needs no root at the target" 0 "$(agent target action=on plug="$victim" "${both[@]}" use_sudo=1 sudo_path=/tmp/bin/sudo)"
like "sudo runs the command" "hcablk target admit --if-exists vol1" "$(on target 'cat /tmp/sudo.log')"
# Two targets that hang. Pacemaker says that it limits the time itself; the agent ends before that.
must on target ': > /tmp/hang'
begin=$(now_ms)
same "targets that hang are a failure" 1 "$(agent_by='env PCMK_service=pacemaker-fenced' agent target action=off plug="$victim" "${evict[@]}" \
	ip="$target_address,10.77.0.9" login_timeout=1 power_timeout=5)"
within "they have one deadline, of 16 seconds" $(($(now_ms) - begin)) $((24000 * slow))
like "both are named" '10.77.0.1 failed.*10.77.0.9 failed' "$(said target | tr '\n' ' ')"
must on target 'rm /tmp/hang'
for guest in c1 c2; do
	must on $guest 'hcablk disconnect --force vol1'
done
must on target "hcablk target admit vol1 $victim; hcablk target unexport vol1 && hcablk target unexport vol2 && dmsetup remove door && dmsetup remove gate"
