#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: hosts that ask for connections and never finish them, as many as may, keep no other from connecting, coming back and leaving; nor do those of a drive that hangs.
# group: refuse
# tier: heart
# turn: 12
# takes: 30
# skips: siw
# waits: yes
# timeout: 500

. "${0%/*}/lib.sh"

[ "$rdma" = rxe ] || skip "the crowd's connection requests come from no queue pair, which siw does not have"

le() {
	local n=$2 i
	for ((i = 0; i < $1; i++)); do
		printf '%02x' $((n & 255))
		n=$((n >> 8))
	done
}
# id_of HOST: a guest's, or what is an id itself
id_of() {
	case $1 in
	*-*) echo "$1" ;;
	*) host_id "$1" ;;
	esac
}
# request HOST VOLUME SESSION EPOCH: a connection request for the admin queue pair of a session of one more, in hexadecimal
request() {
	printf '484341420202%sff01%s%s%s%s%s' "$(le 2 1)" 0000 "$(le 8 "$3")" "$(le 4 "$4")" "$(id_of "$1" | tr -d -)" \
		"$(printf '%-16s' "$2" | tr ' ' '\0' | od -An -v -tx1 | tr -d ' \n')"
}
# crowd GUEST REQUEST session|epoch COUNT [NAME]: begins.
crowd() {
	ON_SECONDS=280 spawn "crowd-$1${5-}" "$1" "exec hcablk-peer crowd $target_address 7744 $2 $3 $4 > /tmp/crowd${5-} 2>&1"
}
# settles "DESCRIPTION" GUEST REGEX [NAME]: what it says last comes to be so.
settles() {
	check "$1" wait_until "$2" 60 "tail -n 1 /tmp/crowd${4-} | grep -qx '$3'"
	echo "# $2: $(on "$2" "tail -n 1 /tmp/crowd${4-}")" >&2
}
# disperse GUEST [NAME…]: ends all that there are on the guest.
disperse() {
	local guest=$1 name
	shift
	on "$guest" 'killall hcablk-peer; rm /tmp/crowd*'
	for name in "${@:-}"; do
		join "crowd-$guest$name" || true
	done
}
# Its own session of that volume: "SESSION EPOCH", the first as a hexadecimal number.
session_of() {
	on target "awk '\$1 == \"$2\" && \$2 == \"$(id_of "$1")\" { print \$3, \$4 }' $target/ports/*/sessions"
}
soon=60
# comes_back: c2 replaces a session of its own on `well`, as an initiator does that has lost it.
comes_back() {
	local session second
	# Another session of the host's instance.
	read -r session _ <<< "$(session_of c2 well)"
	second=$(((16#$session & ~65535) | 4711))
	spawn first c2 "hcablk-peer connect $target_address 7744 $(request c2 well $second 1) wait > /tmp/first"
	must wait_until c2 60 'grep -q established /tmp/first'
	like "it comes back to a volume that does not hang" "^established" \
		"$(on c2 "hcablk-peer connect $target_address 7744 $(request c2 well $second 2) close" 2>&1)"
	join first
}
# Connection requests that may be under way in all; of those that wait for drives a host may have 32, and 16 sessions.
all=40 own=32 sessions=16
# And how many may wait for one drive, while nobody waits for another one: half of all.
drives=64

must on target "modprobe hcablk_target pending_connects=$all && modprobe dm_mod &&
	echo \"0 \$(blockdev --getsz $drive) linear $drive 0\" | dmsetup create hung && dmsetup mknodes"
export_volume hung "/dev/$(on target 'dmsetup info -c --noheadings -o blkdevname hung')" c1 c2
export_volume well "$drive2" c1 c2
# Sessions that are granted and of which nothing more comes.
crowd c2 "$(request c2 well 815 1)" session $((sessions + 8))
settles "of a host's sessions that come to nothing there are so many" c2 "granted $sessions, refused 8, waiting 0"
like "another host has a session besides" "^established" \
	"$(on c1 "hcablk-peer connect $target_address 7744 $(request c1 well 4712 1) close" 2>&1)"
disperse c2
check "they end with those who asked" wait_until target 60 "[ -z \"\$(cat $target/volumes/well/clients)\" ]"

for client in c1 c2; do
	connect $client hung --queues 1 --io-timeout 600 --message-requests 1
	disks+=("$device")
done
must on target 'dmsetup suspend --nolockfs hung'
for n in 1 2; do
	before=$(stat_of target $target/volumes/hung receives)
	ON_SECONDS=300 spawn read$n c$n "fio --name=r --filename=${disks[n - 1]} --direct=1 --ioengine=libaio --rw=randread --bs=4k \
		--iodepth=8 --number_ios=8"
	must wait_until target 60 "awk '\$1 == \"receives\" { exit !(\$2 >= $((before + 8))) }' $target/volumes/hung/stats"
done

# c1 comes back again and again to what hangs.
identifiers=$(on target 'rdma resource show cm_id | wc -l')
read -r session_c1 epoch_c1 <<< "$(session_of c1 hung)"
crowd c1 "$(request c1 hung $((16#$session_c1)) $((epoch_c1 + 1)))" epoch $((own + 200))
settles "of a host that asks again and again, so many requests wait" c1 "granted 0, refused 200, waiting $own"

export ON_SECONDS=$soon
connect c2 well
check "another host connects and is served" on c2 "dd if=/dev/zero of=$device bs=64k count=4 oflag=direct"
comes_back
disconnect c2 well
check "it leaves, and nothing is left of it" wait_until target $soon "[ -z \"\$(cat $target/volumes/well/clients)\" ]"

connect c2 well

# Both together are all that may be under way.
read -r session epoch <<< "$(session_of c2 hung)"
crowd c2 "$(request c2 hung $((16#$session)) $((epoch + 1)))" epoch $((own + 100))
settles "all together so many wait" c2 "granted 0, refused $((own + 100 - all + own)), waiting $((all - own))"
started=$(now_ms)
like "then a request is refused at once" "^rejected 48434142$(le 2 5)" \
	"$(on c1 "hcablk-peer connect $target_address 7744 $(request c1 well 4713 1) close" 2>&1)"
within "which takes no time" $(($(now_ms) - started)) $((15000 * slow))
check "who is connected is served" on c2 "dd if=/dev/zero of=$device bs=64k count=4 oflag=direct"
disconnect c2 well
check "and leaves, and nothing is left of it" wait_until target $soon "[ -z \"\$(cat $target/volumes/well/clients)\" ]"
disperse c2
check "when some of them are gone there is room for another" wait_until c2 $soon "hcablk connect $target_address well"
disconnect c2 well

disperse c1
must wait_until target $soon "[ \$(rdma resource show cm_id | wc -l) -le $identifiers ]"
crowd c1 "$(request c1 hung $((16#$session_c1)) $((epoch_c1 + 1000)))" epoch $((own + 20))
settles "those who gave up are not counted any more" c1 "granted 0, refused 20, waiting $own"
must on target 'dmsetup resume hung'
settles "when the drive has finished, all who wait have their answers" c1 "granted [1-9][0-9]*, refused [1-9][0-9]*, waiting 0"
disperse c1
ON_SECONDS=120
for n in 1 2; do
	refuse "what c$n read fails, since it came back" join read$n
	must on c$n 'hcablk disconnect --force hung'
done
check "nothing is left" wait_until target 60 "[ -z \"\$(cat $target/volumes/hung/clients)\" ]"
must on target 'hcablk target unexport hung && hcablk target unexport well && hcablk target unlisten --all && rmmod hcablk_target'

# Several hosts, each with something in the drive and as many requests as it may have.
hosts=()
for ((n = 0; n <= drives / own; n++)); do
	hosts+=("$(printf '0c0ffee0-0000-4000-8000-%012d' $n)")
done
export_volume hung "/dev/$(on target 'dmsetup info -c --noheadings -o blkdevname hung')"
for n in "${!hosts[@]}"; do
	must on target "hcablk target allow hung ${hosts[n]}"
	connect c1 hung --name "hung$n" --host-id "${hosts[n]}" --queues 1 --io-timeout 600 --message-requests 1
	disks[n]=$device
done
must on target 'dmsetup suspend --nolockfs hung'
before=$(stat_of target $target/volumes/hung receives)
for n in "${!hosts[@]}"; do
	ON_SECONDS=300 spawn "read$n" c1 "fio --name=r --filename=${disks[n]} --direct=1 --ioengine=libaio --rw=randread --bs=4k \
		--iodepth=8 --number_ios=8"
done
must wait_until target 60 "awk '\$1 == \"receives\" { exit !(\$2 >= $((before + 8 * ${#hosts[@]}))) }' $target/volumes/hung/stats"
for n in "${!hosts[@]}"; do
	read -r session epoch <<< "$(session_of "${hosts[n]}" hung)"
	request=$(request "${hosts[n]}" hung $((16#$session)) $((epoch + 1)))
	if [ "$n" -lt $((drives / own)) ]; then
		crowd c2 "$request" epoch $((own + 3)) "$n"
		settles "host $n: as many wait for the drive as may" c2 "granted 0, refused 3, waiting $own" "$n"
	else
		# A guest runs no more commands at a time.
		crowd c1 "$request" epoch $((own + 3))
		settles "when $drives wait for a drive, none of another host does" c1 "granted 0, refused $((own + 3)), waiting 0"
	fi
done
export_volume well "$drive2" c2
ON_SECONDS=$soon connect c2 well
comes_back
ON_SECONDS=$soon disconnect c2 well
disperse c1
disperse c2 $(seq 0 $((drives / own - 1)))
must on target 'dmsetup resume hung'
for n in "${!hosts[@]}"; do
	join "read$n" || true
	must on c1 "hcablk disconnect --force hung$n"
done
check "nothing is left of these hosts" wait_until target 60 "[ -z \"\$(cat $target/volumes/hung/clients)\" ]"
must on target 'hcablk target unexport hung && hcablk target unexport well && dmsetup remove hung'
for guest in c1 c2 target; do
	check "no queue pair is left on $guest" wait_until $guest 60 "[ \$(rdma resource show qp | grep -v 'type GSI' | wc -l) = 0 ]"
done
