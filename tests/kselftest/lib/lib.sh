# shellcheck shell=bash disable=SC2034 # names are for the tests
# SPDX-License-Identifier: GPL-2.0
#
# Functions of the tests. A test is a bash script that runs outside the guests and runs commands in them:
#
#	on GUEST COMMAND…		runs shell text in a guest; output and exit code are the guest's
#	check "DESCRIPTION" COMMAND…	one test point: ok when the command succeeds
#	refuse "DESCRIPTION" COMMAND…	one test point: ok when it fails
#	must COMMAND…			no test point, but the test ends if it fails
#	within "DESCRIPTION" TOOK LIMIT	one test point: something that has ended took less than LIMIT
#
# Output is TAP, the exit code is kselftest's: 0 passed, 1 failed, 4 skipped.
#
# The function of a point decides the kind of its failure (tests/README.md): the event of `wait_until` and `wait_log` may come after
# its time and before twice that, and a time of `within` may be too long. Then the point is late ("not ok … # late"), as is a
# point of `check` and `must` whose command ends with such a wait. Every other failure is wrong, as is an event that never comes.

set -uo pipefail

# The random numbers of a script depend on the run's seed.
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

# The log says when each point was reached, to show what is slow.
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

# _not_ok TEXT: prints a point that is not ok; the caller counts the reason
_not_ok() {
	_header
	_at "$1"
	_points=$((_points + 1))
	_failures=$((_failures + 1))
	echo "not ok $_points - $1"
	# With an injected bug the test ends at the point that finds it.
	[[ -z ${HCABLK_STOP_AT:-} || ! "not ok $_points - $1" =~ $HCABLK_STOP_AT ]] || exit $KSFT_FAIL
}

fail() {
	_not_ok "$1"
}

# late TEXT: prints a point whose event came after its time.
late() {
	_lates=$((_lates + 1))
	_not_ok "$1 # late"
}

# skip REASON: ends the test as skipped.
skip() {
	echo "TAP version 14"
	echo "1..0 # SKIP $1"
	trap - EXIT
	exit $KSFT_SKIP
}

# The error of a guest that could not be started or stopped.
_reason=

# die TEXT: ends the test at once, since the following steps need the one that failed.
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

# _nothing TEXT: succeeds if the text is empty or a checksum of nothing: the command that should have printed it may
# have failed.
_nothing() {
	case $1 in
	'' | d41d8cd98f00b204e9800998ecf8427e* | e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855*) return 0 ;;
	*) return 1 ;;
	esac
}

# same "DESCRIPTION" WANTED GOT: WANTED must not be empty; use `silent` for that.
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

# like "DESCRIPTION" REGEX TEXT: refuses a REGEX that matches any text, or none.
like() {
	if [[ "" =~ $2 || $'\x01' =~ $2 ]]; then
		fail "$1"
		echo "# '$2' matches anything" >&2
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

# within "DESCRIPTION" TOOK LIMIT: TOOK < LIMIT, the time of a finished step
within() {
	if [ "$2" -lt "$3" ]; then pass "$1"; else late "$1"; echo "# it took $2, which is not less than $3" >&2; fi
}

_finish() {
	local code=$?
	trap - EXIT
	# If all failures are late points, the script must still reach its end.
	[ $code = 0 ] || [ $_failures != $_lates ] || fail "the script ends before its time, with the exit code $code"
	_header
	echo "1..$_points"
	[ $_failures = 0 ] || exit $KSFT_FAIL
	[ $code = 0 ] && [ $_points != 0 ] && exit $KSFT_PASS
	exit $KSFT_FAIL
}
trap _finish EXIT

# ---- guests

# The factor for all times on a kernel full of checks; the runner applies it to `on` and to time-outs.
slow=${HCABLK_SLOW:-1}

# The most seconds of a command in a guest; `ON_SECONDS=… on …` changes it for one.
ON_SECONDS=120

_runner() {
	"$HCABLK_ON" "$@"
}

# The guest that stands for another guest, if both sides are in one guest: hca.sh.
declare -A _place=()
# The RDMA device of a side, if a guest has more than one.
declare -A _link=()

on() {
	local guest=${_place[$1]:-$1}
	shift
	_runner on "$guest" "$ON_SECONDS" "$@"
}

# vm kill|start|pause|resume|add-drive GUEST; vm link-down|link-up GUEST CABLE; vm trace GUEST EVENT: act on the machine
vm() {
	local output
	output=$(_runner vm "$1" "${_place[$2]:-$2}" "${@:3}" 2>&1) && return
	echo "$output" >&2
	_reason=": $output"
	return 1
}

# add_volatile_drive: adds $volatile_drive to the target, empty, until the test ends. When the target's machine is killed, the drive
# loses all writes that were neither flushed nor made with FUA.
add_volatile_drive() {
	on target 'modprobe -a virtio_scsi sd_mod' || skip "the kernel has no driver for the volatile drive"
	must vm add-drive target
}

# traced GUEST EVENT: ends the trace that `vm trace` began, and prints what QEMU's devices did.
traced() {
	_runner vm traced "${_place[$1]:-$1}" "$2"
}

# _poll GUEST SECONDS GRACE COMMAND…: repeats the command in the guest until it succeeds, for SECONDS + GRACE at most. The exit code
# is $LATE when the command succeeds only after SECONDS.
_poll() {
	local guest=$1 seconds=$2 grace=$3 said
	shift 3
	# The guest's shell cannot read the quotes that @Q puts around several lines.
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

# _grace SECONDS: prints the further seconds to wait for an event that has SECONDS, to know whether it comes at all.
_grace() {
	echo $(($1 > 10 ? $1 : 10))
}

# wait_until GUEST SECONDS COMMAND…: waits until the command succeeds in the guest.
wait_until() {
	_poll "$1" "$2" "$(_grace "$2")" "${@:3}"
}

# becomes_true GUEST SECONDS COMMAND…: returns whether the command succeeds within these seconds; it need not.
becomes_true() {
	_poll "$1" "$2" 0 "${@:3}"
}

# wait_log GUEST SECONDS REGEX: waits for a kernel message of this test, and prints it.
wait_log() {
	local code=0
	_runner log wait "${_place[$1]:-$1}" "$2" "${@:3}" && return
	# A message between the two waits is late, too.
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
# The drive of 512 MiB that `add_volatile_drive` adds.
volatile_drive=/dev/volatile

# host_id GUEST: prints the client's id, which guests have in /etc/hcablk/host_id.
host_id() {
	on "$1" 'cat /etc/hcablk/host_id'
}

initiator=/sys/kernel/config/hcablk
target=/sys/kernel/config/hcablk_target

# ---- volumes and devices

# The ids that host_id has printed so far.
declare -A _host_ids

# keep DIRECTORY: prints the commands that make a directory for reservations, as the package does.
keep() {
	echo "mkdir -p $1 && : > $1/.hcablk-reservations"
}

# export_volume VOLUME PATH [--OPTION…] CLIENT…: exports without keys, unless the test has set $with_keys.
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

# key_digits GUEST host|target: prints the guest's own key in the form that the kernel and hcablk-prove read.
key_digits() {
	on "$1" "hcablk key show $2" | sed 's/^hcablk-key-1:\([0-9a-f]*\)-.*/\1/'
}

# use_keys CLIENT…: makes keys for the target and these clients, and exchanges them; volumes that are exported after that demand
# proofs.
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

# connect GUEST VOLUME [--OPTION…]: connects a disk, and sets $device. Without --ctrl-loss-tmo a lost connection fails the disk at
# once. On a slow kernel the timeouts of requests, keep-alives and connecting are longer.
connect() {
	local guest=$1 volume=$2
	shift 2
	[[ " $* " = *" --ctrl-loss-tmo "* ]] || set -- "$@" --ctrl-loss-tmo 0
	[ "$slow" = 1 ] || [[ " $* " = *" --io-timeout "* ]] || set -- "$@" --io-timeout $((30 * slow))
	[ "$slow" = 1 ] || [[ " $* " = *" --keep-alive-tmo "* ]] || set -- "$@" --keep-alive-tmo $((5 * slow))
	[ "$slow" = 1 ] || [[ " $* " = *" --connect-timeout "* ]] || set -- "$@" --connect-timeout $((10 * slow))
	device=$(on "$guest" "disk=\$(hcablk connect $target_address $volume $*) || exit; left=$((200 * slow))
		until [ -b \$disk ]; do
			[ \$left -gt 0 ] || { echo \"no \$disk\" >&2; exit 1; }
			left=\$((left - 1))
			usleep 50000
		done
		echo \$disk") || die "$guest cannot connect to $volume"
	disk=${device#/dev/}
}

disconnect() {
	must on "$1" "hcablk disconnect $2"
}

# share CLIENT…: exports the target's first drive as vol1, and connects it to these clients.
share() {
	export_volume vol1 "$drive" "$@"
	for guest; do
		connect "$guest" vol1
	done
}

# try_connect GUEST NAME SETTING=VALUE…: makes a device by hand and enables it; prints the text of the error, if any (the shell's
# own echo would not print it).
try_connect() {
	local guest=$1 name=$2 script
	shift 2
	script="modprobe hcablk; cd $initiator && mkdir -p $name && cd $name && env echo 0 > ctrl_loss_tmo"
	for setting; do
		script+=" && env echo '${setting#*=}' > ${setting%%=*}"
	done
	on "$guest" "$script && env echo 1 > enable" 2>&1
}

# stats_of GUEST CONFIGFS-DIRECTORY COUNTER…: prints counters of one moment, a line each. It reads twice: the first read waits for
# the completions that queues are handling, but only for a short time, which may not be enough on a busy machine. For counters that
# cannot be read it prints "no_COUNTER", which equals no number, and ends a test that calculates with it.
stats_of() {
	local guest=$1 place=$2
	shift 2
	on "$guest" "for file in $place/stats; do read -r _ < \$file; done
		awk '{ sum[\$1] += \$2 } END { n = split(\"$*\", names)
		for (i = 1; i <= n; i++) if (!(names[i] in sum)) exit 1
		for (i = 1; i <= n; i++) printf \"%d\\n\", sum[names[i]] }' $place/stats" || { printf 'no_%s\n' "$@" && false; }
}

# stat_of GUEST CONFIGFS-DIRECTORY COUNTER: prints one counter
stat_of() {
	stats_of "$@"
}

# count NAME "COUNTERS": prints the counter's value in the text of a file `stats`, or "no_NAME": see stats_of()
count() {
	awk -v name="$1" '$1 == name { print $2; seen = 1; exit } END { if (!seen) print "no_" name }' <<< "$2"
}

# queue_pairs GUEST: prints the number of RDMA queue pairs, without that of the management.
queue_pairs() {
	on "$1" "pairs=\$(rdma resource show qp) || exit; echo \"\$pairs\" | grep '^link ${_link[$1]:-}' | grep -v 'type GSI' | wc -l"
}

# For wait_until: the side that ends a connection removes its queue pair before the other side.
no_queue_pairs="[ \$(rdma resource show qp | grep -v 'type GSI' | wc -l) = 0 ]"

# rnr GUEST: prints how often the RDMA device received or sent "receiver not ready"; for the tests' own devices, how often it sent
# that and the other device received it. soft-iWARP does not count it.
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

# rxe_count GUEST COUNTER: prints a counter of the guest's soft-RoCE device
rxe_count() {
	on "$1" "cat /sys/class/infiniband/rxe0/ports/1/hw_counters/$2"
}

# drive_holds read|write: waits until the target's drive has such a request and does not end it. A suspended device of device-mapper
# does not count the requests that wait for it; a device above it does.
drive_holds() {
	local field
	case $1 in
	read) field=1 ;;
	write) field=2 ;;
	esac
	wait_until target 60 "cat /sys/block/dm-*/inflight | awk '\$$field > 0 { n = 1 } END { exit !n }'"
}

# netem GUEST CARD FAULT…: applies the fault of the kernel's network emulator to packets that the card sends; without FAULT it sends
# them unchanged. The emulator stays: the card refuses packets while one is added or removed, for which soft-RoCE fails a queue
# pair, even that of the management.
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

# few N: prints the number of repetitions of a slow step: fewer than N on a slow kernel, but at least one.
few() {
	echo $(($1 > slow ? $1 / slow : 1))
}

# by_turns "EDGES…" "OTHERS…": prints the values that a sweep tries: those at its edges, and one of the others, which HCABLK_SEED
# chooses; all of them if HCABLK_WHOLE is set.
by_turns() {
	local _others
	read -ra _others <<< "$2"
	[ -n "${HCABLK_WHOLE:-}" ] || _others=("${_others[${HCABLK_SEED:-1} % ${#_others[@]}]}")
	echo "# of a sweep: $1 ${_others[*]}" >&2
	echo "$1 ${_others[*]}"
}

# hostile_messages N: prints how many messages a test of feature hostile sends: a tenth of N, or N if HCABLK_WHOLE is set. On a
# debug kernel each message takes dozens of times as long.
hostile_messages() {
	local all=$1
	[ -n "${HCABLK_WHOLE:-}" ] || all=$((all / 10))
	all=$(few "$all")
	! on target '[ -e /sys/kernel/debug/kmemleak ]' || all=400
	echo "${HCABLK_MESSAGES:-$all}"
}

# fio GUEST OPTION…: runs fio for 200 s at most.
fio() {
	local guest=$1
	shift
	ON_SECONDS=200 on "$guest" "fio --output-format=terse --terse-version=3 --direct=1 --ioengine=libaio $*"
}

# start_load NAME GUEST DEVICE [FIO-OPTION…]: starts reads and writes that continue until they fail; returns when they are under
# way. A slow kernel gets fewer requests at a time: with the usual number a guest answered no keep-alive for twenty seconds.
start_load() {
	local name=$1 guest=$2 device=$3
	shift 3
	ON_SECONDS=330 spawn "$name" "$guest" "fio --name=load --filename=$device --direct=1 --ioengine=libaio \
		--rw=randrw --bs=32k --iodepth=$(few 16) --numjobs=2 --time_based --runtime=300 --norandommap $* 2>&1"
	must wait_until "$guest" 30 "awk '{ exit !(\$1 > 40 && \$5 > 40) }' /sys/block/${device#/dev/}/stat"
}

# survives GUEST VOLUME "DESCRIPTION" COMMAND…: checks that the command, a load that verifies, finds its data right; or that the
# connection is lost and the load's requests fail with that, and sets $survived to 0. Soft-RoCE breaks a connection when it has to
# send again while a REG_MR is in its send queue: it carries that out a second time (rxe_requester() does not look at the state of
# a local operation), "lkey not free".
survives() {
	local guest=$1 volume=$2 what=$3 output file
	shift 3
	survived=1
	file=$(mktemp)
	# Not in a subshell, which could not join a job.
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
	check "$what: the connection is lost" wait_until "$guest" 40 "grep -q failed $initiator/$volume/state"
	must wait_until "$guest" 30 "hcablk disconnect --if-exists $volume"
}

# survives_fault "DESCRIPTION" EVIDENCE TRIES LOAD…: repeats the function LOAD, which calls `survives` and gets the number of
# the try, until the load survived a try in which the counter that the function EVIDENCE prints has grown: the load met the
# fault, and survived it.
survives_fault() {
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
	same "$what: the fault was there" 1 $seen
	same "$what: the load survived the fault" "1 1" "$seen $survived"
}

# joined NAME GUEST: joins the job, and prints what it has written to /tmp/load.
joined() {
	local result=0
	join "$1" || result=$?
	on "$2" 'cat /tmp/load; rm /tmp/load'
	return $result
}

# ends_within NAME MILLISECONDS "DESCRIPTION": checks that load of start_load ends with errors, in time.
ends_within() {
	local started
	started=$(now_ms)
	if join "$1"; then
		fail "$3: the requests fail"
	else
		pass "$3: the requests fail"
	fi
	within "$3: the requests fail within $(($2 * slow / 1000)) s" $(($(now_ms) - started)) $(($2 * slow))
}

# ---- OCFS2

# The network of the clients' cluster stacks.
ocfs2_net=10.77.0

# ocfs2_start CLIENT…: starts the cluster stack on every client.
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

# ocfs2_stop CLIENT…: stops the cluster stack.
ocfs2_stop() {
	for guest; do
		must on "$guest" 'o2cb unregister-cluster c; umount /dlm'
	done
}

if [ "$rdma" = hca ]; then
	. "${BASH_SOURCE[0]%/*}/hca.sh"
	hca_pair
fi
