#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: the resource agents for Pacemaker pass ocf-tester, and their monitors distinguish a resource that exists from one that works.
# turn: 12
# takes: 50
# guests: target c1

. "${0%/*}/../lib/lib.sh"

agents=/usr/lib/ocf/resource.d/hcablk
# The agents' exit codes.
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
ON_SECONDS=900 check "ocf-tester accepts the agent of exports" on target "modprobe hcablk_target; ocf-tester -v -n vol1 ${words[*]} $agents/export"
same "monitor: an export that was not started does not run" $not_running "$(agent target export monitor "${export[@]}")"
same "the export starts" $ok "$(agent target export start "${export[@]}")"
same "monitor: the export runs" $ok "$(agent target export monitor "${export[@]}")"
must on target 'hcablk target unlisten --all'
same "monitor: an export without a listening port has failed" $generic "$(agent target export monitor "${export[@]}")"
like "the agent reports that no port listens" 'no port listens' "$(on target 'cat /tmp/agent.said')"
same "monitor: a disabled export does not run" $not_running \
	"$(must on target "echo 0 > $target/volumes/vol1/enable" && agent target export monitor "${export[@]}")"
same "start enables a disabled export" $ok "$(agent target export start "${export[@]}")"
same "validate-all refuses an export without its drive" 5 "$(agent target export validate-all volume=vol2 device=/dev/none "allow=$host")"
same "validate-all refuses a malformed host id" $configured "$(agent target export validate-all volume=vol2 "device=$drive" allow=c1)"
same "the agent refuses an action that it does not implement" $unimplemented "$(agent target export promote "${export[@]}")"

must on target 'hcablk target listen || true'
disk=(disk=data "address=$target_address" volume=vol1 'options=--ctrl-loss-tmo 600' wait=5)
words=()
for word in "${disk[@]}"; do
	words+=("-o '$word'")
done
ON_SECONDS=900 check "ocf-tester accepts the agent of disks" on c1 "modprobe hcablk; ocf-tester -v -n data ${words[*]} $agents/disk"
same "the disk starts" $ok "$(agent c1 disk start "${disk[@]}")"
check "the started disk has a block device" wait_until c1 20 '[ -b /dev/hcablk0 ]'
same "notify leaves the disk as it is" $ok "$(agent c1 disk notify "${disk[@]}")"
must on c1 'mkfs.ext4 -q -F /dev/hcablk0 && mount /dev/hcablk0 /mnt'
same "stop fails while the disk is mounted" $generic "$(agent c1 disk stop "${disk[@]}")"
must on c1 'umount /mnt'
# The export moves to another node: this one ends it in order, and the disk waits.
same "the export stops under the disk" $ok "$(agent target export stop "${export[@]}")"
check "the disk waits" wait_until c1 60 "grep -q queueing $initiator/data/state"
same "monitor: a waiting disk has not failed" $ok "$(agent c1 disk monitor "${disk[@]}")"
same "the export starts again" $ok "$(agent target export start "${export[@]}")"
check "the disk is live again" wait_until c1 60 "grep -q '^live' $initiator/data/state"
must on c1 "echo 1 > $initiator/data/force_disconnect"
same "monitor: a disconnected disk has failed" $generic "$(agent c1 disk monitor "${disk[@]}")"
same "the disk stops" $ok "$(agent c1 disk stop "${disk[@]}")"
same "monitor: the stopped disk does not run" $not_running "$(agent c1 disk monitor "${disk[@]}")"
same "validate-all refuses a volume without an address" $configured "$(agent c1 disk validate-all disk=data volume=vol1)"
same "the disk does not start without its target" $generic "$(agent c1 disk start disk=data address=10.77.0.99 wait=0 'options=--connect-timeout 2')"
