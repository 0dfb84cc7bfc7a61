#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: a target tells of the portals that it gets and loses, and a disk that is to have a path for each gets it and stays; another is left as it is.
# turn: 22
# takes: 45
# guests: target c1
# waits: yes
# timeout: 900

. "${0%/*}/../lib/lib.sh"
. "${0%/*}/../lib/multi.sh"

two_cards 1 target c1
target_address=10.77.1.1
must on target "dd if=/dev/zero of=$drive bs=1M count=16 conv=fsync"
export_volume vol1 "$drive" c1
export_volume vol2 "$drive2" c1
# One portal, at one address: a port at any address is told as the one by which is asked.
must on target "hcablk target unlisten --all && hcablk target listen --address 10.77.1.1"
ON_SECONDS=800 spawn events c1 'echo $$ > /tmp/follower; exec hcablk events --only uevents --json > /tmp/events 2> /tmp/remarks'
must wait_until c1 30 'grep -q "\"listening\"" /tmp/events'

# comes DISK NUMBER: it comes to be told so often
comes() {
	wait_until c1 30 "[ \$(grep '\"portals-changed\"' /tmp/events | grep -c '\"disk\":\"$1\"') = $2 ]"
}
# paths DISK: the addresses of all paths beside path 0
paths() {
	on c1 "cat $initiator/$1/paths/*/address 2> /dev/null; true" | paste -sd' '
}
# sync [OPTION…]: what udev's rule runs for vol1; the remarks, too
sync_paths() {
	on c1 "hcablk path sync vol1 $* 2>&1"
}
# setting DISK: whether a path is to be added for each portal
setting() {
	on c1 "hcablk list --json" | jq -r ".devices[] | select(.name == \"$1\").paths_auto"
}

# A keep-alive each 5 minutes, so that nothing is asked for; but the rounds in which is asked again are of a second.
connect c1 vol2 --ctrl-loss-tmo 600 --queues 1 --keep-alive-tmo 600
connect c1 vol1 --ctrl-loss-tmo 600 --queues 2 --keep-alive-tmo 600 --paths auto
same "the disk is to have a path for each portal" true "$(setting vol1)"
same "the other one is not" false "$(setting vol2)"
silent "there is one portal, and one path" paths vol1
for name in vol1 vol2; do
	check "$name: the target tells of portals at the begin" comes $name 1
done
silent "the rule's command finds nothing to do" sync_paths

ON_SECONDS=800 spawn writers c1 "exec hcablk-versions write $device 2 > /tmp/versions"
must on target "hcablk target listen --address 10.77.2.1"
check "the target listens at another address, and tells so" comes vol1 2
like "the event has what udev's rule looks for" '"device":"/dev/'"$disk"'"' "$(on c1 "grep portals-changed /tmp/events | grep '\"disk\":\"vol1\"' | tail -n 1")"
same "by itself: a keep-alive was sent once" 1 "$(stat_of c1 $initiator/vol2 keep_alives)"
silent "nobody but the command makes a path" paths vol1
like "which says what it does" "vol1 has path 1: 10.77.2.1:7744" "$(sync_paths)"
same "the path is there" 10.77.2.1 "$(paths vol1)"
check "and live" disk_is c1 vol1 live
before=$(sent_by c1 path2)
check "requests go by it" wait_until c1 60 "[ \$(cat /sys/class/net/path2/statistics/tx_packets) -gt $((before + 200)) ]"
silent "once more changes nothing" sync_paths
same "as is told" false "$(on c1 'hcablk path sync vol1 --json' | jq -r .result.changed)"
same "nor does connecting once more" "$device" "$(on c1 "hcablk connect $target_address vol1 --paths auto 2> /dev/null")"
same "there are two paths" 10.77.2.1 "$(paths vol1)"

check "the other disk is told, too" comes vol2 2
like "and is left as it is" "vol2 has the paths that it was given" "$(on c1 'hcablk path sync vol2 2>&1')"
silent "also if all are asked for" on c1 'hcablk path sync 2>&1'
silent "it has one path" paths vol2

# A portal that this host does not reach.
must on target "ip address add 10.77.9.1/32 dev path2 && hcablk target listen --address 10.77.9.1"
check "a portal is told of that is not reached" comes vol1 3
like "which is said, and no failure" "vol1 has no path to the portal 10.77.9.1:7744: .+" "$(sync_paths)"
same "nothing of it stays" 10.77.2.1 "$(paths vol1)"
check "the disk is as it was" disk_is c1 vol1 live

# It is what is saved.
must on c1 'mkdir -p /etc/hcablk && rm -f /etc/hcablk/hcablk.toml && hcablk config save'
same "it is saved by one word" 'paths = "auto"' "$(on c1 "sed -n '/^\[disk.vol1\]/,/^\[/p' /etc/hcablk/hcablk.toml | grep paths")"
like "and so is what is configured" "everything already matches the configuration" "$(on c1 'hcablk apply 2>&1')"
must on c1 'rm /etc/hcablk/hcablk.toml'

ports=$(on target 'hcablk target list --json' | jq -r '.ports[] | select(.address != "10.77.1.1").id' | paste -sd' ')
must on target "hcablk target unlisten $ports"
check "the target ceases to listen there, and tells so" wait_until c1 30 "[ \$(grep '\"portals-changed\"' /tmp/events | grep -c '\"disk\":\"vol1\"') -ge 4 ]"
check "the disk has both paths" disk_is c1 vol1 live
silent "what is there stays" sync_paths
same "path and all" 10.77.2.1 "$(paths vol1)"
like "unless it is to go" "vol1 no longer has path 1: 10.77.2.1:7744" "$(sync_paths --prune)"
silent "then it is gone" paths vol1
check "the disk is not" disk_is c1 vol1 live

must on c1 'touch /tmp/stop'
check "whoever reads what was acknowledged finds nothing older" join writers
same "no request has failed" 0 "$(stat_of c1 $initiator/vol1 errors)"
versions=$(on c1 'cat /tmp/versions; rm /tmp/versions /tmp/stop')
check "the drive has what was acknowledged" on target "echo '$versions' | hcablk-versions check $drive"
must on c1 'kill -INT $(cat /tmp/follower)'
check "who listened ends well" join events
