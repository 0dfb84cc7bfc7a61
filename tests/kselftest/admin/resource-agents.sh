#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: the resource agents for Pacemaker do what ocf-tester asks of one, and their monitors tell what is there from what works.
# turn: 12
# takes: 50
# guests: target c1

. "${0%/*}/../lib/lib.sh"

agents=/usr/lib/ocf/resource.d/hcablk
# Exit codes of agents.
ok=0 generic=1 unimplemented=3 configured=6 not_running=7

# agent GUEST NAME ACTION [PARAMETER=VALUE…]: prints its exit code.
agent() {
	local guest=$1 name=$2 action=$3 words=
	shift 3
	for word; do
		words+=" OCF_RESKEY_${word%%=*}='${word#*=}'"
	done
	on "$guest" "OCF_ROOT=/usr/lib/ocf OCF_RESOURCE_INSTANCE=r HA_LOGFILE=/tmp/agent.log $words $agents/$name $action > /tmp/agent.said 2>&1; code=\$?
		cat /tmp/agent.said >&2; echo \$code"
}

host=$(host_id c1)
export=(volume=vol1 "device=$drive" "allow=$host" "options=--insecure")
words=()
for word in "${export[@]}"; do
	words+=("-o '$word'")
done
ON_SECONDS=900 check "ocf-tester has nothing against the agent of exports" on target "modprobe hcablk_target; ocf-tester -v -n vol1 ${words[*]} $agents/export"
same "one that is not started does not run" $not_running "$(agent target export monitor "${export[@]}")"
same "it starts" $ok "$(agent target export start "${export[@]}")"
same "and runs" $ok "$(agent target export monitor "${export[@]}")"
must on target 'hcablk target unlisten --all'
same "without a port that listens it does not work" $generic "$(agent target export monitor "${export[@]}")"
like "and says so" 'no port listens' "$(on target 'cat /tmp/agent.said')"
same "what is there, but not enabled, does not run" $not_running \
	"$(must on target "echo 0 > $target/volumes/vol1/enable" && agent target export monitor "${export[@]}")"
same "a start repairs it" $ok "$(agent target export start "${export[@]}")"
same "without its drive it is refused" 5 "$(agent target export validate-all volume=vol2 device=/dev/none "allow=$host")"
same "as is a host that is none" $configured "$(agent target export validate-all volume=vol2 "device=$drive" allow=c1)"
same "and what agents do not do" $unimplemented "$(agent target export promote "${export[@]}")"

must on target 'hcablk target listen || true'
disk=(disk=data "address=$target_address" volume=vol1 'options=--ctrl-loss-tmo 600' wait=5)
words=()
for word in "${disk[@]}"; do
	words+=("-o '$word'")
done
ON_SECONDS=900 check "ocf-tester has nothing against the agent of disks" on c1 "modprobe hcablk; ocf-tester -v -n data ${words[*]} $agents/disk"
same "it starts" $ok "$(agent c1 disk start "${disk[@]}")"
check "and there is a disk" wait_until c1 20 '[ -b /dev/hcablk0 ]'
same "a notification changes nothing" $ok "$(agent c1 disk notify "${disk[@]}")"
must on c1 'mkfs.ext4 -q -F /dev/hcablk0 && mount /dev/hcablk0 /mnt'
same "one that is in use is not taken away" $generic "$(agent c1 disk stop "${disk[@]}")"
must on c1 'umount /mnt'
# The export moves: its node ends it in order, and the disk waits.
same "the export is stopped under it" $ok "$(agent target export stop "${export[@]}")"
check "the disk waits" wait_until c1 60 "grep -q queueing $initiator/data/state"
same "which is no failure" $ok "$(agent c1 disk monitor "${disk[@]}")"
same "the export is started again" $ok "$(agent target export start "${export[@]}")"
check "the disk goes on" wait_until c1 60 "grep -q '^live' $initiator/data/state"
must on c1 "echo 1 > $initiator/data/force_disconnect"
same "one that has failed is not taken for one that runs" $generic "$(agent c1 disk monitor "${disk[@]}")"
same "it is stopped" $ok "$(agent c1 disk stop "${disk[@]}")"
same "and does not run then" $not_running "$(agent c1 disk monitor "${disk[@]}")"
same "parameters that do not go together are refused" $configured "$(agent c1 disk validate-all disk=data volume=vol1)"
same "without the target it does not start" $generic "$(agent c1 disk start disk=data address=10.77.0.99 wait=0 'options=--connect-timeout 2')"
