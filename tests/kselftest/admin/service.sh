#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: hcablk-target.service retries only steps that failed, and ends only exports and ports that it made, also while a drive hangs.
# turn: 13
# takes: 30
# guests: target c1
# waits: yes

. "${0%/*}/../lib/lib.sh"

volumes=$target/volumes
exported="grep -l 1 $volumes/*/enable | cut -d/ -f7 | xargs"
id=$(host_id c1)

# exits CODE COMMAND…: runs the command, prints its output, and succeeds if its exit code is CODE
exits() {
	local code=$1 output got=0
	shift
	output=$(on target "$* 2>&1") || got=$?
	echo "# exit code $got: $output" >&2
	echo "$output"
	[ $got = "$code" ]
}

# Device-mapper counts no requests of a suspended device; the device above it does.
must on target "modprobe dm_mod && echo '0 65536 linear $drive 0' | dmsetup create gate && dmsetup mknodes &&
	echo '0 65536 linear /dev/mapper/gate 0' | dmsetup create door && dmsetup mknodes"
must on target "mkdir -p /etc/hcablk && cat > /etc/hcablk/hcablk.toml << END
[export.hung]
insecure = true
device = \"/dev/mapper/door\"
allow = [\"$id\"]

[export.well]
insecure = true
device = \"$drive2\"
allow = [\"$id\"]

[export.later]
insecure = true
device = \"/tmp/later.img\"

[port.1]
END"
like "apply reports the export without a drive" '/tmp/later.img' "$(exits 3 hcablk target apply --keep-going --record)"
same "the other exports are enabled" "hung well" "$(on target "$exported")"

# The retry must not undo the administrator's changes.
must on target "hcablk target forbid well $id && hcablk target unlisten 1 && hcablk target export mine $drive2 --read-only --no-port --insecure"
like "a retry without the drive fails again" '/tmp/later.img' "$(exits 3 hcablk target apply --retry)"
must on target 'truncate -s 16M /tmp/later.img'
check "a retry exports the volume when its drive exists" on target 'hcablk target apply --retry'
same "the retried volume is exported beside the others" "hung later mine well" "$(on target "$exported")"
silent "a retry does not allow a host that the administrator forbade" on target "ls $volumes/well/hosts"
silent "a retry does not make the port that the administrator ended" on target "ls $target/ports"
must on target "hcablk target allow well $id && hcablk target listen --id 1"

# The drive hangs with a client's write.
connect c1 hung --io-timeout 600 --ctrl-loss-tmo 600
must on target 'dmsetup suspend --nolockfs gate'
spawn held c1 "dd if=/dev/zero of=$device bs=64k count=1 oflag=direct conv=notrunc status=none"
must drive_holds write
said=$(exits 4 hcablk target unapply --timeout 5) || fail "unapply succeeds although an export has not ended"
like "unapply names the export that has not ended" 'volume hung is being ended' "$said"
like "unapply names the exports that have ended" 'ended later.*ended well' "$(tr '\n' ' ' <<< "$said")"
same "unapply ended the service's exports, and no other" "hung mine" "$(on target "ls $volumes | xargs")"
must on target 'dmsetup resume gate'
check "the hung export ends when its drive answers" wait_until target 60 "[ ! -e $volumes/hung ]"
silent "the next unapply finds nothing left" on target 'hcablk target unapply 2> /dev/null'

must on c1 'hcablk disconnect --force hung'
join held || true
must on target 'hcablk target unexport mine && hcablk target unlisten --all && dmsetup remove door gate && rm /etc/hcablk/hcablk.toml /tmp/later.img'
