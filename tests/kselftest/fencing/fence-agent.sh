#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: after the fence agent reports a node as off, with either method, no request of the node reaches the drive until it is admitted again.
# turn: 2
# takes: 250
# waits: yes
# timeout: 1800

. "${0%/*}/../lib/lib.sh"

# agent GUEST NAME=VALUE…: runs the agent with these lines on standard input; prints its exit code, and logs its output.
agent() {
	local guest=$1
	shift
	on "$guest" "printf '%s\n' ${*@Q} | ${agent_by:-} ${agent_path:-}fence_hcablk > /tmp/agent.said 2>&1; code=\$?
		cat /tmp/agent.said >&2; echo \$code"
}
agent_output() {
	on "$1" 'cat /tmp/agent.said'
}
# on_drive: prints a checksum of the drive's part that c2's load writes.
on_drive() {
	on target "dd if=/dev/mapper/door bs=1M count=64 iflag=direct 2> /dev/null | md5sum"
}
is_live() {
	wait_until "$1" 60 "[ \$(cat $initiator/vol1/state) = live ]"
}
# write GUEST: makes one write, and prints the error if it fails.
write() {
	on "$1" "env dd if=/dev/zero of=/dev/hcablk0 bs=4k count=1 oflag=direct conv=notrunc status=none 2>&1"
}
conflict='Invalid exchange'

check "the agent's metadata are XML and list all actions" on c1 "fence_hcablk -o metadata | xmllint --noout - &&
	[ \$(fence_hcablk -o metadata | grep -cE '<action name=\"(on|off|status|monitor|metadata)\"') = 5 ]"
check "the agent has the options of fencing.py and its own" on c1 "fence_hcablk -o metadata > /tmp/metadata &&
	for name in plug ip username identity_file use_sudo power_timeout disable_timeout method devices volume; do
		grep -q \"<parameter name=\\\"\$name\\\"\" /tmp/metadata || exit 1; done"
same "the agent refuses an unknown option" 1 "$(on c1 'fence_hcablk --colour red > /dev/null; echo $?')"
reserve=(method=reserve devices=/dev/hcablk0)
for wrong in "action=reboot plug=c2" "action=off" "action=off plug=c2 method=shoot" "action=off plug=c2 devices=" \
	"action=off plug=c2 devices=/dev/none" "action=off plug=c2 devices=/dev/null" "action=status plug=c2 power_timeout=soon" \
	"action=off plug=c2 method=evict volume=vol1 ip=local" "action=off plug=$(host_id c2) method=evict volume=a;b'c ip=local" \
	"action=off plug=$(host_id c2) method=evict volume=vol1 ipaddr=local"; do
	# shellcheck disable=SC2086 # words
	same "the agent refuses: $wrong" 1 "$(agent c1 "${reserve[@]}" $wrong)"
	like "the agent gives a reason for the refusal of: $wrong" "ERROR: [a-zA-Z/]" "$(agent_output c1)"
done

must on target "modprobe -a dm_mod && printf '0 2000000 linear $drive 0\n' | dmsetup create gate && dmsetup mknodes &&
	echo '0 2000000 linear /dev/mapper/gate 0' | dmsetup create door && dmsetup mknodes &&
	$(keep /run/reservations) && modprobe hcablk_target && env echo /run/reservations > $target/reservations"
export_volume vol1 /dev/mapper/door c1 c2
for guest in c1 c2; do
	connect "$guest" vol1 --ctrl-loss-tmo -1
	same "$guest: monitor finds all that the agent needs" 0 "$(agent "$guest" action=monitor "${reserve[@]}")"
	same "$guest: validate-all accepts the options" 0 "$(agent "$guest" action=validate-all "${reserve[@]}" pcmk_host_list=c1)"
done
like "the agent reports an unknown option" 'pcmk_host_list' "$(agent_output c2)"
same "a node that is not registered cannot fence" 1 "$(agent c1 action=off plug=c2 "${reserve[@]}")"
like "the agent reports that the node is not registered" 'not registered' "$(agent_output c1)"
same "a node cannot switch on another node" 1 "$(agent c1 action=on plug=c2 "${reserve[@]}")"
for guest in c1 c2; do
	same "$guest switches itself on" 0 "$(agent "$guest" action=on plug="$guest" nodename="$guest" "${reserve[@]}")"
done
same "a node that is on can be switched on again" 0 "$(agent c2 action=on plug=c2 "${reserve[@]}")"
same "the status of a registered node is on" "0 Status: ON" "$(agent c1 action=status plug=c2 "${reserve[@]}") $(agent_output c1)"
same "the status of an unknown node is off" "2 Status: OFF" "$(agent c1 action=status plug=c9 "${reserve[@]}") $(agent_output c1)"
same "a node cannot fence itself" 1 "$(agent c1 action=off plug=c1 "${reserve[@]}")"

start_load victim c2 /dev/hcablk0 --size=64M
same "a node that writes is fenced" 0 "$(agent c1 action=off plug=c2 "${reserve[@]}")"
before=$(on_drive)
refuse "the writes of the fenced node fail" join victim
same "no write of the fenced node has reached the drive since" "$before" "$(on_drive)"
same "the status of the fenced node is off" "2 Status: OFF" "$(agent c1 action=status plug=c2 "${reserve[@]}") $(agent_output c1)"
must is_live c2
like "a write of the fenced node gives a reservation conflict" "$conflict" "$(write c2)"
silent "a write of the other node succeeds" write c1
same "a fenced node can be fenced again" 0 "$(agent c1 action=off plug=c2 "${reserve[@]}")"
same "the fenced node switches itself on" 0 "$(agent c2 action=on plug=c2 "${reserve[@]}")"
silent "the node that is on again writes" write c2

# The drive has a write, and does not finish it: a preemption that was given up must not count as one that succeeded.
must on target 'dmsetup suspend --nolockfs gate'
ON_SECONDS=300 spawn held c2 "dd if=/dev/zero of=/dev/hcablk0 bs=64k count=1 oflag=direct conv=notrunc status=none"
must drive_holds write
same "fencing fails while the drive has a write of the node" 1 "$(agent c1 action=off plug=c2 "${reserve[@]}")"
like "the agent reports that preempt-abort failed" 'preempt-abort .* failed' "$(agent_output c1)"
same "a repeated fencing does not return while the drive has the write" 124 "$(agent_by='timeout 10' agent c1 action=off plug=c2 "${reserve[@]}")"
must on target 'dmsetup resume gate'
same "fencing succeeds when the drive has finished the write" 0 "$(agent c1 action=off plug=c2 "${reserve[@]}")"
join held
must is_live c2
same "the fenced node switches itself on after the hang" 0 "$(agent c2 action=on plug=c2 "${reserve[@]}")"

same "the agent finds blkpr with a short PATH" 0 "$(agent_by='env PATH=/usr/bin:/bin' agent_path=/usr/sbin/ agent c1 action=validate-all "${reserve[@]}")"

victim=$(host_id c2)
evict=(method=evict volume=vol1 ip=local)
same "monitor finds all that the method evict needs" 0 "$(agent target action=monitor "${evict[@]}")"
same "validate-all accepts a node's name, before pcmk_host_map is applied" 0 "$(agent target action=validate-all plug=c2 "${evict[@]}")"
same "monitor fails for an unknown volume" 1 "$(agent target action=monitor method=evict volume=vol2 ip=local)"
same "the agent lists the hosts" 0 "$(agent target action=list "${evict[@]}")"
like "the list has the host of c2" "$victim," "$(agent_output target)"
same "the status of an allowed host is on" "0 Status: ON" "$(agent target action=status plug="$victim" "${evict[@]}") $(agent_output target)"
start_load victim c2 /dev/hcablk0 --size=64M
same "a host that writes is evicted" 0 "$(agent target action=off plug="$victim" "${evict[@]}")"
before=$(on_drive)
refuse "the writes of the evicted host fail" join victim
same "no write of the evicted host has reached the drive since" "$before" "$(on_drive)"
same "the status of the evicted host is off" "2 Status: OFF" "$(agent target action=status plug="$victim" "${evict[@]}") $(agent_output target)"
must on c2 'hcablk disconnect vol1'
refuse "the evicted host cannot connect" on c2 "hcablk connect $target_address vol1"
# A script stands for ssh, and runs the command here for one of two targets; the second target is unreachable.
must on target "mkdir -p /tmp/bin && cat > /tmp/bin/ssh << 'END' && chmod 755 /tmp/bin/ssh
#!/bin/sh
echo \"\$*\" >> /tmp/ssh.log
[ ! -e /tmp/hang ] || exec sleep 1000
while [ \$1 != -- ]; do shift; done
[ \$2 = 10.77.0.1 ] || { echo 'ssh: connect to host: No route to host' >&2; exit 255; }
exec sh -c \"\$3\"
END
printf '#!/bin/sh\n[ \$1 = -n ] && shift && echo \"\$*\" >> /tmp/sudo.log && exec \"\$@\"\n' > /tmp/bin/sudo && chmod 755 /tmp/bin/sudo && : > /tmp/key"
evict=(method=evict volume=vol1 username=fencer identity_file=/tmp/key ssh_path=/tmp/bin/ssh)
same "the agent admits the host through ssh" 0 "$(agent target action=on plug="$victim" ip="$target_address" "${evict[@]}")"
like "ssh gets the user name, the key file and the command" "-l fencer -i /tmp/key -- 10.77.0.1 hcablk target admit" "$(on target 'cat /tmp/ssh.log')"
connect c2 vol1
same "the agent fails when one of two targets is unreachable" 1 \
	"$(agent target action=off plug="$victim" ip="$target_address,10.77.0.9" "${evict[@]}")"
like "the agent names the unreachable target" '10.77.0.9 failed.*No route' "$(agent_output target)"
same "the reachable target has evicted the host" "$victim" "$(on target "cut -d' ' -f1 $target/volumes/vol1/evicted")"
# Several volumes at one target.
evicted="cut -d' ' -f1 $target/volumes/vol1/evicted $target/volumes/vol2/evicted"
export_volume vol2 "$drive2" c1 c2
must on target "rm /tmp/ssh.log"
both=("${evict[@]}" "volume=vol1,vol2" "ip=$target_address")
same "the agent admits the host to two volumes" 0 "$(agent target action=on plug="$victim" "${both[@]}")"
silent "neither volume has an evicted host" on target "$evicted"
same "the agent evicts the host from two volumes" 0 "$(agent target action=off plug="$victim" "${both[@]}")"
same "both volumes have the evicted host" "$victim $victim" "$(on target "$evicted" | xargs)"
same "each action has logged in to the target once" 2 "$(on target 'wc -l < /tmp/ssh.log')"
same "the agent fails when one of two volumes fails" 1 "$(agent target action=off plug="$victim" "${both[@]}" volume=vol2,none)"
like "the agent names the volume that failed" 'none' "$(agent_output target)"
same "the agent can use sudo at the target" 0 "$(agent target action=on plug="$victim" "${both[@]}" use_sudo=1 sudo_path=/tmp/bin/sudo)"
like "sudo runs the command" "hcablk target admit --if-exists vol1" "$(on target 'cat /tmp/sudo.log')"
# Two targets that hang. Pacemaker asks agents to leave the time limit to it; this agent must still end by itself.
must on target ': > /tmp/hang'
begin=$(now_ms)
same "the agent fails when targets hang" 1 "$(agent_by='env PCMK_service=pacemaker-fenced' agent target action=off plug="$victim" "${evict[@]}" \
	ip="$target_address,10.77.0.9" login_timeout=1 power_timeout=5)"
within "two hanging targets have one deadline, of 16 seconds" $(($(now_ms) - begin)) $((24000 * slow))
like "the agent names both hanging targets" '10.77.0.1 failed.*10.77.0.9 failed' "$(agent_output target | tr '\n' ' ')"
must on target 'rm /tmp/hang'
for guest in c1 c2; do
	must on $guest 'hcablk disconnect --force vol1'
done
must on target "hcablk target admit vol1 $victim; hcablk target unexport vol1 && hcablk target unexport vol2 && dmsetup remove door && dmsetup remove gate"
