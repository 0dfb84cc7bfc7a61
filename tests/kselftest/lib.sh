# shellcheck shell=bash disable=SC2034 # names are for the tests
# SPDX-License-Identifier: GPL-2.0
#
# What the tests share. A test is a bash script that runs beside the guests and has things done in them:
#
#	on GUEST COMMAND…		runs shell text in a guest; output and exit code are the guest's
#	check "DESCRIPTION" COMMAND…	one test point: ok when the command succeeds
#	refuse "DESCRIPTION" COMMAND…	one test point: ok when it fails
#	must COMMAND…			no test point, but without it the test cannot go on
#
# Output is TAP, the exit code is kselftest's: 0 passed, 1 failed, 4 skipped.

set -uo pipefail

readonly KSFT_PASS=0 KSFT_FAIL=1 KSFT_SKIP=4

_points=0
_failures=0
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

fail() {
	_header
	_at "$1"
	_points=$((_points + 1))
	_failures=$((_failures + 1))
	echo "not ok $_points - $1"
}

# Ends the test as one that cannot run here.
skip() {
	echo "TAP version 14"
	echo "1..0 # SKIP $1"
	trap - EXIT
	exit $KSFT_SKIP
}

# Ends the test at once: what follows needs what went wrong.
die() {
	fail "$*"
	exit $KSFT_FAIL
}

check() {
	local what=$1
	shift
	if "$@" >&2; then pass "$what"; else fail "$what"; echo "# failed: $*" >&2; fi
}

refuse() {
	local what=$1
	shift
	if "$@" >&2; then fail "$what"; echo "# succeeded: $*" >&2; else pass "$what"; fi
}

must() {
	"$@" >&2 || die "$*"
}

# same "DESCRIPTION" WANTED GOT
same() {
	if [ "$2" = "$3" ]; then pass "$1"; else fail "$1"; echo "# wanted '$2', got '$3'" >&2; fi
}

# like "DESCRIPTION" REGEX TEXT
like() {
	if [[ "$3" =~ $2 ]]; then pass "$1"; else fail "$1"; echo "# wanted something like '$2', got '$3'" >&2; fi
}

# less "DESCRIPTION" N LIMIT: N < LIMIT
less() {
	if [ "$2" -lt "$3" ]; then pass "$1"; else fail "$1"; echo "# $2 is not less than $3" >&2; fi
}

_finish() {
	local code=$?
	trap - EXIT
	_header
	echo "1..$_points"
	[ $_failures = 0 ] || exit $KSFT_FAIL
	[ $code = 0 ] && [ $_points != 0 ] && exit $KSFT_PASS
	exit $KSFT_FAIL
}
trap _finish EXIT

# ---- guests

# Seconds a command in a guest may take; `ON_SECONDS=… on …` changes it for one.
ON_SECONDS=60

_runner() {
	# shellcheck disable=SC2086 # an interpreter with its options
	$HCABLK_ON "$@"
}

on() {
	local guest=$1
	shift
	_runner on "$guest" "$ON_SECONDS" "$@"
}

# vm kill|start|pause|resume GUEST; vm link-down|link-up GUEST CABLE
vm() {
	_runner vm "$@"
}

# wait_until GUEST SECONDS COMMAND…: runs the command in the guest again and again until it succeeds.
wait_until() {
	local guest=$1 seconds=$2
	shift 2
	ON_SECONDS=$((seconds + 20)) on "$guest" "
		end=\$((\$(cut -d. -f1 /proc/uptime) + $seconds))
		until { $*; } > /dev/null 2>&1; do
			if [ \$(cut -d. -f1 /proc/uptime) -ge \$end ]; then
				echo \"\$(hostname): not within $seconds s:\" ${*@Q} >&2
				exit 1
			fi
			usleep 50000
		done"
}

# wait_log GUEST SECONDS REGEX: waits for a kernel message of this test, and prints it.
wait_log() {
	_runner log wait "$@"
}

# in_log GUEST REGEX: prints the kernel messages of this test that match.
in_log() {
	_runner log grep "$@"
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

target_address=10.77.0.1
target_address6=fd77::1
# The target's two NVMe drives, of 1 GiB and 512 MiB.
drive=/dev/drive0
drive2=/dev/drive1

host_id() {
	echo "00000000-0000-4000-8000-0000000000c${1#c}"
}
