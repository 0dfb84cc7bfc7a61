# shellcheck shell=bash disable=SC2034 # names are for the tests
# SPDX-License-Identifier: GPL-2.0
#
# What the tests share. A test is a bash script that runs beside the guests and has things done in them:
#
#	on GUEST COMMAND…		runs shell text in a guest; output and exit code are the guest's
#	check "DESCRIPTION" COMMAND…	one test point: ok when the command succeeds
#	refuse "DESCRIPTION" COMMAND…	one test point: ok when it fails
#	must COMMAND…			no test point, but without it the test cannot go on
#	within "DESCRIPTION" TOOK LIMIT	one test point: something that has ended took less than LIMIT
#
# Output is TAP, the exit code is kselftest's: 0 passed, 1 failed, 4 skipped.
#
# How a point is written says what kind of failure it is (tests/README.md): what `wait_until` and `wait_log` wait for may come
# after their time and before twice that, and what `within` has measured may be too long. Then the point is late ("not ok …
# # late"), and so is what `check` and `must` call that ends with such a wait. Every other failure is wrong, and so is what has not
# come at all.

set -uo pipefail

# What a script draws comes from the run's seed.
RANDOM=${HCABLK_SEED:-1}

readonly KSFT_PASS=0 KSFT_FAIL=1 KSFT_SKIP=4
# The exit code of a wait whose event came late.
readonly LATE=62

_points=0
_failures=0
_lates=0
_started=0
_begin=${EPOCHREALTIME/[.,]/}

_header() {
	[ $_started = 1 ] || echo "TAP version 14"
	_started=1
}

# The log says when each point was reached, so that what takes long is seen.
_at() {
	local now=$EPOCHREALTIME
	echo "# at $(((${now/[.,]/} - _begin) / 1000)) ms: $1" >&2
}

pass() {
	_header
	_at "$1"
	_points=$((_points + 1))
	echo "ok $_points - $1"
}

# _not_ok TEXT: a point that is not ok, for a reason that is counted where this is called
_not_ok() {
	_header
	_at "$1"
	_points=$((_points + 1))
	_failures=$((_failures + 1))
	echo "not ok $_points - $1"
	# Who injects a bug knows what it is found by.
	[[ -z ${HCABLK_STOP_AT:-} || ! "not ok $_points - $1" =~ $HCABLK_STOP_AT ]] || exit $KSFT_FAIL
}

fail() {
	_not_ok "$1"
}

# What was awaited has come, but not in time.
late() {
	_lates=$((_lates + 1))
	_not_ok "$1 # late"
}

# Ends the test as one that cannot run here.
skip() {
	echo "TAP version 14"
	echo "1..0 # SKIP $1"
	trap - EXIT
	exit $KSFT_SKIP
}

# Why a guest could not be started or stopped.
_reason=

# Ends the test at once: what follows needs what went wrong.
die() {
	fail "$*$_reason"
	exit $KSFT_FAIL
}

check() {
	local what=$1 code=0
	shift
	"$@" >&2 || code=$?
	case $code in
	0) pass "$what" ;;
	"$LATE") late "$what" ;;
	*)
		fail "$what"
		echo "# failed: $*" >&2
		;;
	esac
}

refuse() {
	local what=$1
	shift
	if "$@" >&2; then fail "$what"; echo "# succeeded: $*" >&2; else pass "$what"; fi
}

must() {
	local code=0
	"$@" >&2 || code=$?
	case $code in
	0) ;;
	"$LATE") late "$*" ;;
	*) die "$*" ;;
	esac
}

# Is there no text, or only the checksum of none? Then what should have printed it may have failed.
_nothing() {
	case $1 in
	'' | d41d8cd98f00b204e9800998ecf8427e* | e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855*) return 0 ;;
	*) return 1 ;;
	esac
}

# same "DESCRIPTION" WANTED GOT: WANTED is something; that there is nothing is for `silent`.
same() {
	if _nothing "$2"; then
		fail "$1"
		echo "# nothing is wanted: '$2', got '$3'" >&2
	elif [ "$2" = "$3" ]; then
		pass "$1"
	else
		fail "$1"
		echo "# wanted '$2', got '$3'" >&2
	fi
}

# silent "DESCRIPTION" COMMAND…: the command succeeds, and prints nothing.
silent() {
	local what=$1 output code=0
	shift
	output=$("$@") || code=$?
	if [ $code = 0 ] && [ -z "$output" ]; then
		pass "$what"
	else
		fail "$what"
		echo "# exit code $code, printed '$output': $*" >&2
	fi
}

# like "DESCRIPTION" REGEX TEXT: a REGEX that any text is like, or none, is refused.
like() {
	if [[ "" =~ $2 || $'\x01' =~ $2 ]]; then
		fail "$1"
		echo "# '$2' is like anything" >&2
	elif [[ "$3" =~ $2 ]]; then
		pass "$1"
	else
		fail "$1"
		echo "# wanted something like '$2', got '$3'" >&2
	fi
}

# less "DESCRIPTION" N LIMIT: N < LIMIT
less() {
	if [ "$2" -lt "$3" ]; then pass "$1"; else fail "$1"; echo "# $2 is not less than $3" >&2; fi
}

# within "DESCRIPTION" TOOK LIMIT: TOOK < LIMIT, of something that has ended
within() {
	if [ "$2" -lt "$3" ]; then pass "$1"; else late "$1"; echo "# it took $2, which is not less than $3" >&2; fi
}

_finish() {
	local code=$?
	trap - EXIT
	# Who was late has come to the script's end.
	[ $code = 0 ] || [ $_failures != $_lates ] || fail "the script ends before its time, with the exit code $code"
	_header
	echo "1..$_points"
	[ $_failures = 0 ] || exit $KSFT_FAIL
	[ $code = 0 ] && [ $_points != 0 ] && exit $KSFT_PASS
	exit $KSFT_FAIL
}
trap _finish EXIT

# ---- guests

# How much more time a kernel full of checks may take; the runner reckons with it in `on` and in time-outs.
slow=${HCABLK_SLOW:-1}

# Seconds a command in a guest may take; `ON_SECONDS=… on …` changes it for one.
ON_SECONDS=120

_runner() {
	"$HCABLK_ON" "$@"
}

# Which guest has another's part, where both ends are in one: hca.sh.
declare -A _place=()
# And which RDMA device, where there is more than one.
declare -A _link=()

on() {
	local guest=${_place[$1]:-$1}
	shift
	_runner on "$guest" "$ON_SECONDS" "$@"
}

# vm kill|start|pause|resume|add-drive GUEST; vm link-down|link-up GUEST CABLE; vm trace GUEST EVENT
vm() {
	local output
	output=$(_runner vm "$1" "${_place[$2]:-$2}" "${@:3}" 2>&1) && return
	echo "$output" >&2
	_reason=": $output"
	return 1
}

# add_volatile_drive: adds $volatile_drive to the target, empty, until the test ends. When the target's machine is killed, the drive
# loses what was neither flushed nor written with FUA.
add_volatile_drive() {
	on target 'modprobe -a virtio_scsi sd_mod' || skip "the kernel has no driver for the volatile drive"
	must vm add-drive target
}

# traced GUEST EVENT: ends what `vm trace` began, and prints what QEMU's devices did.
traced() {
	_runner vm traced "${_place[$1]:-$1}" "$2"
}

# _poll GUEST SECONDS GRACE COMMAND…: runs the command in the guest again and again until it succeeds, so long. The exit code is
# $LATE when it does so only in the seconds of GRACE behind these.
_poll() {
	local guest=$1 seconds=$2 grace=$3 said
	shift 3
	# The guest's shell does not know what @Q makes of several lines.
	said=${*//\'/\'\\\'\'}
	ON_SECONDS=$((seconds + grace + 20)) on "$guest" "
		{ $*; } > /dev/null 2>&1 && exit
		_began=\$(cut -d. -f1 /proc/uptime) _late=
		until { $*; } > /dev/null 2>&1; do
			_took=\$((\$(cut -d. -f1 /proc/uptime) - _began))
			[ \$_took -lt $((seconds * slow)) ] || _late=1
			if [ \$_took -ge $(((seconds + grace) * slow)) ]; then
				echo \"\$(hostname): not within $((seconds + grace)) s:\" '$said' >&2
				exit 1
			fi
			usleep 50000
		done
		[ \"\$_late\" ] || exit 0
		echo \"\$(hostname): not within $seconds s, but \$_took s:\" '$said' >&2
		exit $LATE"
}

# _grace SECONDS: for how much longer something that is to come within these is awaited, to know whether it comes at all.
_grace() {
	echo $(($1 > 10 ? $1 : 10))
}

# wait_until GUEST SECONDS COMMAND…: waits until the command succeeds in the guest.
wait_until() {
	_poll "$1" "$2" "$(_grace "$2")" "${@:3}"
}

# becomes_true GUEST SECONDS COMMAND…: whether the command comes to succeed within these seconds; no failure if it does not.
becomes_true() {
	_poll "$1" "$2" 0 "${@:3}"
}

# wait_log GUEST SECONDS REGEX: waits for a kernel message of this test, and prints it.
wait_log() {
	local code=0
	_runner log wait "${_place[$1]:-$1}" "$2" "${@:3}" && return
	# What was said while nobody asked has come late, too.
	_runner log wait "${_place[$1]:-$1}" "$(_grace "$2")" "${@:3}" || code=$?
	[ $code = 0 ] || return $code
	echo "$1: not within $2 s, but then: ${*:3}" >&2
	return $LATE
}

# in_log GUEST REGEX: prints the kernel messages of this test that match.
in_log() {
	_runner log grep "${_place[$1]:-$1}" "${@:2}"
}

# Background commands in guests: spawn NAME GUEST COMMAND… and later join NAME.
declare -A _jobs
spawn() {
	local name=$1
	shift
	on "$@" >&2 &
	_jobs[$name]=$!
}

join() {
	wait "${_jobs[$1]}"
}

now_ms() {
	local now=$EPOCHREALTIME
	echo $((${now/[.,]/} / 1000))
}

# ---- the guests' places and names

# The guests' RDMA device: its driver and its name.
rdma=${HCABLK_RDMA:-rxe}
rdma_link=${rdma}0

target_address=10.77.0.1
target_address6=fd77::1
# The target's two NVMe drives, of 1 GiB and 512 MiB.
drive=/dev/drive0
drive2=/dev/drive1
# The one of 512 MiB that `add_volatile_drive` adds.
volatile_drive=/dev/volatile

# The id that targets know a client by; guests have it in /etc/hcablk/host_id.
host_id() {
	on "$1" 'cat /etc/hcablk/host_id'
}

initiator=/sys/kernel/config/hcablk
target=/sys/kernel/config/hcablk_target

# ---- volumes and devices

# Ids of hosts that were asked for theirs.
declare -A _host_ids

# keep DIRECTORY: prints the commands that make a directory which keeps reservations, as the package does.
keep() {
	echo "mkdir -p $1 && : > $1/.hcablk-reservations"
}

# export_volume VOLUME PATH [--OPTION…] CLIENT…: hosts need no key, unless the test has set $with_keys.
export_volume() {
	local volume=$1 path=$2 arguments=()
	shift 2
	[ -n "${with_keys:-}" ] || arguments+=(--insecure)
	for word; do
		case $word in
		-*) arguments+=("$word") ;;
		*)
			[ -n "${_host_ids[$word]:-}" ] || _host_ids[$word]=$(host_id "$word")
			arguments+=(--allow "${_host_ids[$word]}")
			;;
		esac
	done
	must on target "hcablk target export $volume $path ${arguments[*]}"
}

# key_digits GUEST host|target: its own key as the peer's programs and the kernel take it.
key_digits() {
	on "$1" "hcablk key show $2" | sed 's/^hcablk-key-1:\([0-9a-f]*\)-.*/\1/'
}

# use_keys CLIENT…: makes keys for the target and these clients, and gives each side those of the other; volumes demand them
# from now on.
use_keys() {
	local id key
	with_keys=1
	must on target 'hcablk key generate target'
	key=$(on target 'hcablk key show target')
	for guest; do
		id=$(host_id "$guest")
		must on "$guest" "hcablk key generate host && echo $key | hcablk key add target default"
		must on target "echo $(on "$guest" 'hcablk key show host') | hcablk key add host $id"
	done
}

# connect GUEST VOLUME [--OPTION…]: connects, and sets $device to the disk. A connection that is lost shall show, unless a
# test is about that. Where everything takes longer, requests and keep-alives may, too.
connect() {
	local guest=$1 volume=$2
	shift 2
	[[ " $* " = *" --ctrl-loss-tmo "* ]] || set -- "$@" --ctrl-loss-tmo 0
	[ "$slow" = 1 ] || [[ " $* " = *" --io-timeout "* ]] || set -- "$@" --io-timeout $((30 * slow))
	[ "$slow" = 1 ] || [[ " $* " = *" --keep-alive-tmo "* ]] || set -- "$@" --keep-alive-tmo $((5 * slow))
	device=$(on "$guest" "disk=\$(hcablk connect $target_address $volume $*) || exit; left=$((200 * slow))
		until [ -b \$disk ]; do
			[ \$left -gt 0 ] || { echo \"no \$disk\" >&2; exit 1; }
			left=\$((left - 1))
			usleep 50000
		done
		echo \$disk") || die "$guest connects to $volume"
	disk=${device#/dev/}
}

disconnect() {
	must on "$1" "hcablk disconnect $2"
}

# share CLIENT…: the target's first drive as vol1, connected by these clients.
share() {
	export_volume vol1 "$drive" "$@"
	for guest; do
		connect "$guest" vol1
	done
}

# try_connect GUEST NAME SETTING=VALUE…: makes a device by hand and enables it; prints the error's text, if any
# (the shell's own echo would not tell it).
try_connect() {
	local guest=$1 name=$2 script
	shift 2
	script="modprobe hcablk; cd $initiator && mkdir -p $name && cd $name && env echo 0 > ctrl_loss_tmo"
	for setting; do
		script+=" && env echo '${setting#*=}' > ${setting%%=*}"
	done
	on "$guest" "$script && env echo 1 > enable" 2>&1
}

# stats_of GUEST CONFIGFS-DIRECTORY COUNTER…: of one moment, a line each. They are read once before: a target waits for what its
# queues are handling, but not for long, and on a busy machine the processor that does so may not run meanwhile. What cannot be
# read is "no_COUNTER", which no number is like, and which ends a test that calculates with it.
stats_of() {
	local guest=$1 place=$2
	shift 2
	on "$guest" "for file in $place/stats; do read -r _ < \$file; done
		awk '{ sum[\$1] += \$2 } END { n = split(\"$*\", names)
		for (i = 1; i <= n; i++) if (!(names[i] in sum)) exit 1
		for (i = 1; i <= n; i++) printf \"%d\\n\", sum[names[i]] }' $place/stats" || { printf 'no_%s\n' "$@" && false; }
}

# stat_of GUEST CONFIGFS-DIRECTORY COUNTER
stat_of() {
	stats_of "$@"
}

# count NAME "COUNTERS": the counter's value in the text of a file `stats`, or "no_NAME": see stats_of()
count() {
	awk -v name="$1" '$1 == name { print $2; seen = 1; exit } END { if (!seen) print "no_" name }' <<< "$2"
}

# queue_pairs GUEST: how many RDMA queue pairs there are, without the management's own.
queue_pairs() {
	on "$1" "pairs=\$(rdma resource show qp) || exit; echo \"\$pairs\" | grep '^link ${_link[$1]:-}' | grep -v 'type GSI' | wc -l"
}

# For wait_until: a peer that has ended a connection knows of that before the other end.
no_queue_pairs="[ \$(rdma resource show qp | grep -v 'type GSI' | wc -l) = 0 ]"

# rnr GUEST: how often the RDMA device saw or said "receiver not ready", a device of the tests' own how often it said so, and the
# other one saw it. soft-iWARP does not count it.
rnr() {
	case $rdma in
	hca) counted "${_link[$1]}" rnr_naks ;;
	siw) echo 0 ;;
	*)
		on "$1" "rdma statistic show link $rdma_link/1 | tr ' ' '\n' |
			awk '/rnr_err/ { getline n; sum += n; seen = 1 } END { if (seen) print sum + 0 }'"
		;;
	esac
}

# rxe_count GUEST COUNTER: of its RDMA device
rxe_count() {
	on "$1" "cat /sys/class/infiniband/rxe0/ports/1/hw_counters/$2"
}

# drive_holds read|write: waits until the target's drive has such a request and does not end it. What device-mapper has suspended
# does not count what waits for it; a device above it does.
drive_holds() {
	local field
	case $1 in
	read) field=1 ;;
	write) field=2 ;;
	esac
	wait_until target 60 "cat /sys/block/dm-*/inflight | awk '\$$field > 0 { n = 1 } END { exit !n }'"
}

# netem GUEST CARD FAULT…: what the card sends is treated so by the kernel's network emulator; no fault: as it comes. The emulator
# stays: while one is taken away, or put there, what is sent is refused, for which soft-RoCE fails a queue pair, also that of all
# management.
netem() {
	local guest=$1 card=$2
	shift 2
	if [ $# = 0 ]; then
		must on "$guest" "tc qdisc replace dev $card root netem limit 10000"
	else
		must on "$guest" "modprobe sch_netem && tc qdisc replace dev $card root netem limit 10000 $*"
	fi
}

# ---- load

# few N: N of something that takes time, or fewer on a slow kernel, but at least one.
few() {
	echo $(($1 > slow ? $1 / slow : 1))
}

# by_turns "EDGES…" "OTHERS…": what a sweep tries: the values at its edges, and one of the others, which HCABLK_SEED chooses;
# all of them if HCABLK_WHOLE is set.
by_turns() {
	local _others
	read -ra _others <<< "$2"
	[ -n "${HCABLK_WHOLE:-}" ] || _others=("${_others[${HCABLK_SEED:-1} % ${#_others[@]}]}")
	echo "# of a sweep: $1 ${_others[*]}" >&2
	echo "$1 ${_others[*]}"
}

# hostile_messages N: how many messages a test of feature hostile sends: a tenth of N, all of them if HCABLK_WHOLE is set. On a
# debug kernel each takes dozens of times as long.
hostile_messages() {
	local all=$1
	[ -n "${HCABLK_WHOLE:-}" ] || all=$((all / 10))
	all=$(few "$all")
	! on target '[ -e /sys/kernel/debug/kmemleak ]' || all=400
	echo "${HCABLK_MESSAGES:-$all}"
}

# Seconds fio may take in all.
fio() {
	local guest=$1
	shift
	ON_SECONDS=200 on "$guest" "fio --output-format=terse --terse-version=3 --direct=1 --ioengine=libaio $*"
}

# start_load NAME GUEST DEVICE [FIO-OPTION…]: reads and writes until something ends it; returns when it is under way. On a slow
# kernel there are fewer requests at a time: with as many as elsewhere a guest answered no keep-alive for twenty seconds.
start_load() {
	local name=$1 guest=$2 device=$3
	shift 3
	ON_SECONDS=330 spawn "$name" "$guest" "fio --name=load --filename=$device --direct=1 --ioengine=libaio \
		--rw=randrw --bs=32k --iodepth=$(few 16) --numjobs=2 --time_based --runtime=300 --norandommap $* 2>&1"
	must wait_until "$guest" 30 "awk '{ exit !(\$1 > 40 && \$5 > 40) }' /sys/block/${device#/dev/}/stat"
}

# survives GUEST VOLUME "DESCRIPTION" COMMAND…: the command, load that verifies, finds its data right; or the connection is
# lost, its requests fail with that, and $survived is 0. Soft-RoCE breaks a connection when it has to send again while a
# REG_MR is in its send queue: it carries that out a second time (rxe_requester() does not look at the state of a local
# operation), "lkey not free".
survives() {
	local guest=$1 volume=$2 what=$3 output file
	shift 3
	survived=1
	file=$(mktemp)
	# Not in a subshell, which could not join anything.
	"$@" > "$file" 2>&1 || survived=0
	output=$(< "$file")
	rm "$file"
	if [ $survived = 1 ]; then
		pass "$what: the data is right"
		return
	fi
	echo "$output" >&2
	refuse "$what: no data is wrong" grep -E 'verify: bad|os error 84|Invalid or incomplete|instead of|expected|is wrong' <<< "$output"
	like "$what: requests have failed" "severed|No such device|Input/output error|err=(5|6|19|67)" "$output"
	check "$what: the connection is lost, and says why" wait_until "$guest" 40 "grep -q failed $initiator/$volume/state"
	must wait_until "$guest" 30 "hcablk disconnect --if-exists $volume"
}

# bears "DESCRIPTION" EVIDENCE TRIES LOAD…: LOAD, a function that has load `survives` a fault and is told which try it is, until
# one was survived in which the counter that the function EVIDENCE prints has moved: the fault was there, and it was borne.
bears() {
	local what=$1 evidence=$2 tries=$3 before after try seen=0
	shift 3
	for ((try = 1; try <= tries; try++)); do
		before=$($evidence)
		"$@" "$try"
		after=$($evidence)
		echo "# $what, try $try: $evidence from $before to $after, survived: $survived" >&2
		[ "$after" -gt "$before" ] || continue
		seen=1
		[ "$survived" = 0 ] || break
	done
	same "$what: that has happened" 1 $seen
	same "$what: it was borne" "1 1" "$seen $survived"
}

# joined NAME GUEST: joins, and shows what the job has written into /tmp/load.
joined() {
	local result=0
	join "$1" || result=$?
	on "$2" 'cat /tmp/load; rm /tmp/load'
	return $result
}

# ends_within NAME MILLISECONDS "DESCRIPTION": load that start_load began ends with errors, in time.
ends_within() {
	local started
	started=$(now_ms)
	if join "$1"; then
		fail "$3: the requests fail"
	else
		pass "$3: the requests fail"
	fi
	within "$3: they do so within $(($2 * slow / 1000)) s" $(($(now_ms) - started)) $(($2 * slow))
}

# ---- OCFS2

# The network by which the clients' cluster stacks speak.
ocfs2_net=10.77.0

# ocfs2_start CLIENT…: the cluster stack on every client.
ocfs2_start() {
	local conf=$'cluster:\n\theartbeat_mode = local\n\tnode_count = 2\n\tname = c\n' number=0
	for guest in c1 c2; do
		conf+=$'\nnode:\n'"	number = $number"$'\n\tcluster = c\n\tip_port = 7777\n'
		conf+="	ip_address = $ocfs2_net.$((number + 2))"$'\n'"	name = $guest"$'\n'
		number=$((number + 1))
	done
	for guest; do
		must on "$guest" "
			printf '%s' '$conf' > /etc/ocfs2/cluster.conf
			modprobe -a ocfs2_stack_o2cb ocfs2_dlmfs ocfs2 &&
			echo o2cb > /sys/fs/ocfs2/cluster_stack && mkdir -p /dlm && {
				grep -q ' /dlm ' /proc/mounts || mount -t ocfs2_dlmfs none /dlm
			} && { [ -d /sys/kernel/config/cluster/c ] || o2cb register-cluster c; }"
	done
}

# ocfs2_stop CLIENT…: undoes it.
ocfs2_stop() {
	for guest; do
		must on "$guest" 'o2cb unregister-cluster c; umount /dlm'
	done
}

if [ "$rdma" = hca ]; then
	. "${BASH_SOURCE[0]%/*}/hca.sh"
	hca_pair
fi
