#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: what hcablk-target.service runs tries again what failed and nothing else, and ends what it made and nothing else, also while a drive hangs.
# turn: 13
# takes: 30
# guests: target c1
# waits: yes

. "${0%/*}/../lib/lib.sh"

volumes=$target/volumes
exported="grep -l 1 $volumes/*/enable | cut -d/ -f7 | xargs"
id=$(host_id c1)

# exits CODE COMMAND…: the command ends with this exit code; prints what it says
exits() {
	local code=$1 output got=0
	shift
	output=$(on target "$* 2>&1") || got=$?
	echo "# exit code $got: $output" >&2
	echo "$output"
	[ $got = "$code" ]
}

# A suspended device counts no requests: the one above it does.
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
like "an export without a drive is reported" '/tmp/later.img' "$(exits 3 hcablk target apply --keep-going --record)"
same "the others are there" "hung well" "$(on target "$exported")"

# What the administrator does meanwhile is not undone.
must on target "hcablk target forbid well $id && hcablk target unlisten 1 && hcablk target export mine $drive2 --read-only --no-port --insecure"
like "it is tried again, and fails" '/tmp/later.img' "$(exits 3 hcablk target apply --retry)"
must on target 'truncate -s 16M /tmp/later.img'
check "it is exported when it has a drive" on target 'hcablk target apply --retry'
same "so it is" "hung later mine well" "$(on target "$exported")"
silent "a host that was forbidden is not allowed again" on target "ls $volumes/well/hosts"
silent "nor is there the port that was ended" on target "ls $target/ports"
must on target "hcablk target allow well $id && hcablk target listen --id 1"

# A drive hangs with a write of a client.
connect c1 hung --io-timeout 600 --ctrl-loss-tmo 600
must on target 'dmsetup suspend --nolockfs gate'
spawn held c1 "dd if=/dev/zero of=$device bs=64k count=1 oflag=direct conv=notrunc status=none"
must drive_holds write
said=$(exits 4 hcablk target unapply --timeout 5) || fail "the hung one is no failure that is told"
like "a stop says which export has not ended" 'volume hung is being ended' "$said"
like "and what did" 'ended later.*ended well' "$(tr '\n' ' ' <<< "$said")"
same "the other exports of the service ended, and no other's" "hung mine" "$(on target "ls $volumes | xargs")"
must on target 'dmsetup resume gate'
check "the hung one ends when its drive does" wait_until target 60 "[ ! -e $volumes/hung ]"
silent "the next stop finds nothing" on target 'hcablk target unapply 2> /dev/null'

must on c1 'hcablk disconnect --force hung'
join held || true
must on target 'hcablk target unexport mine && hcablk target unlisten --all && dmsetup remove door gate && rm /etc/hcablk/hcablk.toml /tmp/later.img'
