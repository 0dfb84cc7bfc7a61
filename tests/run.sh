#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0
#
# run.sh [--list] [TEST…]
#	boots guests and runs tests of tests/kselftest with them: all, or those
#	selected by feature, feature/name or glob, or a set: heart, all, turn:N, short:N,
#	or part I of N (I/N, from 0). TAP on standard output, logs in
#	build/test-logs. Usually called by `make test T=…`.
# run.sh --demo SCRIPT
#	boots guests and runs the script with them.
#
# From the environment (the Makefile sets them):
#	HCABLK_CACHE	cache folder, with the build root
#	HCABLK_KREL	release of the kernel the guests run
#	HCABLK_MODDIR	folder with hcablk_core.ko and the other hcablk*.ko
#	HCABLK_BIN	the hcablk command
#	HCABLK_ACCEL	kvm or tcg; detected when not set
#	HCABLK_KERNELS	folder with RELEASE/vmlinuz and its modules; the build root's by default
#	HCABLK_SLOW	the factor for all time limits, a whole number
#	HCABLK_RDMA	the guests' RDMA device: rxe (soft-RoCE, the default), siw (soft-iWARP), or (make test)
#			rxe-large: soft-RoCE with memory regions of 8 MiB, not of 2; hca: the tests' own, in one guest
#	HCABLK_PARAMETERS	parameters of modules in the guests: MODULE.NAME=VALUE, separated by blanks
#	HCABLK_MISSING	folder with modules of Linux that the kernel lacks, or that replace its own
#	HCABLK_OTHER	folder with hcablk*.ko of another build, for the tests of feature upgrade
#	HCABLK_SYSTEM	the folder of scripts/machine-image, for the tests of feature machine, and
#	HCABLK_PACKAGES	the folder with Debian packages
#	HCABLK_MEMORY	a guest's memory in MiB
#	HCABLK_LANES	number of sets of guests that run tests side by side; for a set of tests 3, or 2 without memory for
#			3, but 1 on the debug kernel; else 1
#	HCABLK_MESSAGES	number of messages that the tests of feature hostile send
#	HCABLK_WHOLE	when not empty they send ten times as many, and sweeps take all values
#	HCABLK_SEED	seed of their messages, and of the values of a sweep; 1 when not set, in CI the number of
#			the turn
#	HCABLK_FIRST	the first message's number; 0 when not set
#	HCABLK_REISSUES	number of reissued requests for which tests fencing/ghost-writes and failover/ghost-writes wait
#	HCABLK_KILLS	how often tests reservations/target-killed and lost-writes/target-killed kill the target's machine; 3 and 2
#			when not set
#	HCABLK_PREEMPTIONS
#			how often test reservations/preempt-drains preempts a host that writes; 20 when not set
#	HCABLK_STOP_AT	a regular expression: a test ends when a matching point has failed ("not ok 1 - …")
#	HCABLK_MINUTES	minutes in which test soak/faults breaks paths under load; 1 when not set

set -euo pipefail

tests=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd -P)
top=${tests%/*}

if [ -z "${HCABLK_IN_ROOT:-}" ]; then
	vars=()
	for name in HCABLK_KREL HCABLK_MODDIR HCABLK_BIN HCABLK_ACCEL HCABLK_LOGS \
		HCABLK_KERNELS HCABLK_SLOW HCABLK_MEMORY HCABLK_RDMA HCABLK_MESSAGES HCABLK_SEED \
		HCABLK_FIRST HCABLK_WHOLE HCABLK_MISSING HCABLK_PARAMETERS HCABLK_LANES HCABLK_SYSTEM HCABLK_PACKAGES HCABLK_OTHER \
		HCABLK_REISSUES HCABLK_MINUTES HCABLK_KILLS HCABLK_PREEMPTIONS HCABLK_STOP_AT; do
		[ -z "${!name:-}" ] || vars+=(-e "$name=${!name}")
	done
	exec "$top/scripts/in-root" -C "$top" "${vars[@]}" -- "$tests/run.sh" "$@"
fi

: "${HCABLK_KREL:?is not set: run the tests with "make test"}"
logs=${HCABLK_LOGS:-$top/build/test-logs}/$(date +%Y%m%d-%H%M%S)-$$
arguments=(--cache "$HCABLK_CACHE" --krel "$HCABLK_KREL" --logs "$logs")
[ -z "${HCABLK_MODDIR:-}" ] || arguments+=(--modules "$HCABLK_MODDIR")
[ -z "${HCABLK_KERNELS:-}" ] || arguments+=(--kernels "$HCABLK_KERNELS")
[ -z "${HCABLK_SLOW:-}" ] || arguments+=(--slow "$HCABLK_SLOW")
[ -z "${HCABLK_MEMORY:-}" ] || arguments+=(--memory "$HCABLK_MEMORY")
[ -z "${HCABLK_RDMA:-}" ] || arguments+=(--rdma "$HCABLK_RDMA")
[ -z "${HCABLK_PARAMETERS:-}" ] || arguments+=(--parameters "$HCABLK_PARAMETERS")
[ -z "${HCABLK_MISSING:-}" ] || arguments+=(--missing "$HCABLK_MISSING")
[ -z "${HCABLK_OTHER:-}" ] || arguments+=(--other "$HCABLK_OTHER")
[ -z "${HCABLK_SYSTEM:-}" ] || arguments+=(--system "$HCABLK_SYSTEM" --packages "$HCABLK_PACKAGES")
# Three sets of three guests if there is memory for them. Slow guests keep both processors busy while they boot.
available=$(awk '/^MemAvailable:/ { print int($2 / 1024) }' /proc/meminfo)
case "$*" in
'' | heart | all | turn:* | short:*)
	if [ "${HCABLK_SLOW:-1}" != 1 ]; then
		: "${HCABLK_LANES:=1}"
	elif [ "$available" -gt $((9 * (${HCABLK_MEMORY:-768} + 300))) ]; then
		: "${HCABLK_LANES:=3}"
	else
		: "${HCABLK_LANES:=2}"
	fi
	;;
esac
[ -z "${HCABLK_LANES:-}" ] || arguments+=(--lanes "$HCABLK_LANES")
[ -z "${HCABLK_BIN:-}" ] || arguments+=(--command "$HCABLK_BIN")

# In its own process namespace no guest outlives the runner.
export PYTHONDONTWRITEBYTECODE=1
exec unshare --pid --fork --kill-child=KILL -- \
	python3 "$tests/harness/run.py" "${arguments[@]}" "$@"
