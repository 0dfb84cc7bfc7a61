#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: a target notifies hosts of portals that it adds and removes; a disk with paths=auto gets a path to each portal and keeps it, and other disks keep their paths.
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
# One portal, at one address: for a port that listens at any address the target would report the address of the session.
must on target "hcablk target unlisten --all && hcablk target listen --address 10.77.1.1"
ON_SECONDS=800 spawn events c1 'echo $$ > /tmp/follower; exec hcablk events --only uevents --json > /tmp/events 2> /tmp/remarks'
must wait_until c1 30 'grep -q "\"listening\"" /tmp/events'

# comes DISK NUMBER: waits until the disk has this number of events about portals
comes() {
	wait_until c1 30 "[ \$(grep '\"portals-changed\"' /tmp/events | grep -c '\"disk\":\"$1\"') = $2 ]"
}
# paths DISK: prints the addresses of all paths except path 0
paths() {
	on c1 "cat $initiator/$1/paths/*/address 2> /dev/null; true" | paste -sd' '
}
# sync_paths [OPTION…]: runs the command of udev's rule for vol1, and prints its remarks, too
sync_paths() {
	on c1 "hcablk path sync vol1 $* 2>&1"
}
# setting DISK: prints whether the disk gets a path for each portal
setting() {
	on c1 "hcablk list --json" | jq -r ".devices[] | select(.name == \"$1\").paths_auto"
}

# One keep-alive in 5 minutes, so that the client cannot learn of portals by polling. The rounds in which it asks for
# notices of portals last a second.
connect c1 vol2 --ctrl-loss-tmo 600 --queues 1 --keep-alive-tmo 600
connect c1 vol1 --ctrl-loss-tmo 600 --queues 2 --keep-alive-tmo 600 --paths auto
same "the disk with --paths auto gets a path for each portal" true "$(setting vol1)"
same "the disk without it does not" false "$(setting vol2)"
silent "the disk has one path to the one portal" paths vol1
for name in vol1 vol2; do
	check "$name: the target reports its portals when the disk connects" comes $name 1
done
silent "path sync finds nothing to do" sync_paths

ON_SECONDS=800 spawn writers c1 "exec hcablk-versions write $device 2 > /tmp/versions"
must on target "hcablk target listen --address 10.77.2.1"
check "the target reports a new portal" comes vol1 2
like "the event has the device name, as udev's rule needs" '"device":"/dev/'"$disk"'"' "$(on c1 "grep portals-changed /tmp/events | grep '\"disk\":\"vol1\"' | tail -n 1")"
same "the client sent no further keep-alive to learn that" 1 "$(stat_of c1 $initiator/vol2 keep_alives)"
silent "no path is made without path sync" paths vol1
like "path sync reports the path that it makes" "vol1 has path 1: 10.77.2.1:7744" "$(sync_paths)"
same "the disk has the new path" 10.77.2.1 "$(paths vol1)"
check "the new path is live" disk_is c1 vol1 live
before=$(sent_by c1 path2)
check "requests use the new path" wait_until c1 60 "[ \$(cat /sys/class/net/path2/statistics/tx_packets) -gt $((before + 200)) ]"
silent "a second path sync changes nothing" sync_paths
same "the JSON reports that nothing changed" false "$(on c1 'hcablk path sync vol1 --json' | jq -r .result.changed)"
same "a second connect changes nothing" "$device" "$(on c1 "hcablk connect $target_address vol1 --paths auto 2> /dev/null")"
same "the disk has two paths" 10.77.2.1 "$(paths vol1)"

check "the other disk gets the event" comes vol2 2
like "path sync keeps the other disk's paths" "vol2 has explicit paths" "$(on c1 'hcablk path sync vol2 2>&1')"
silent "path sync of all disks reports nothing" on c1 'hcablk path sync 2>&1'
silent "the other disk still has one path" paths vol2

# A portal that this host cannot reach.
must on target "ip address add 10.77.9.1/32 dev path2 && hcablk target listen --address 10.77.9.1"
check "the target reports an unreachable portal" comes vol1 3
like "path sync reports the unreachable portal without failing" "vol1 has no path to the portal 10.77.9.1:7744: .+" "$(sync_paths)"
same "no path to the unreachable portal is left" 10.77.2.1 "$(paths vol1)"
check "the disk is still live" disk_is c1 vol1 live

# config save must write the setting, not the paths.
must on c1 'mkdir -p /etc/hcablk && rm -f /etc/hcablk/hcablk.toml && hcablk config save'
same "config save writes paths = auto" 'paths = "auto"' "$(on c1 "sed -n '/^\[disk.vol1\]/,/^\[/p' /etc/hcablk/hcablk.toml | grep paths")"
like "apply finds the saved configuration unchanged" "everything already matches the configuration" "$(on c1 'hcablk apply 2>&1')"
must on c1 'rm /etc/hcablk/hcablk.toml'

ports=$(on target 'hcablk target list --json' | jq -r '.ports[] | select(.address != "10.77.1.1").id' | paste -sd' ')
must on target "hcablk target unlisten $ports"
check "the target reports removed portals" wait_until c1 30 "[ \$(grep '\"portals-changed\"' /tmp/events | grep -c '\"disk\":\"vol1\"') -ge 4 ]"
check "the disk still has both paths" disk_is c1 vol1 live
silent "path sync changes nothing without --prune" sync_paths
same "the path to the removed portal stays" 10.77.2.1 "$(paths vol1)"
like "path sync --prune reports the path that it removes" "vol1 no longer has path 1: 10.77.2.1:7744" "$(sync_paths --prune)"
silent "the pruned path does not exist any more" paths vol1
check "the disk is live without the pruned path" disk_is c1 vol1 live

must on c1 'touch /tmp/stop'
check "readers never see data older than an acknowledged write" join writers
same "no request has failed" 0 "$(stat_of c1 $initiator/vol1 errors)"
versions=$(on c1 'cat /tmp/versions; rm /tmp/versions /tmp/stop')
check "the drive has the acknowledged data" on target "echo '$versions' | hcablk-versions check $drive"
must on c1 'kill -INT $(cat /tmp/follower)'
check "hcablk events ends without an error" join events
