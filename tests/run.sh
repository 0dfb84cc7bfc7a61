#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0
#
# run.sh [--list] [TEST…]
#	boots guests and runs the tests of tests/kselftest with them: all, or those
#	named by feature, feature/name or glob, or a set: heart, all, turn:N, short:N,
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
#	HCABLK_ACCEL	kvm or tcg; found out by itself when not set
#	HCABLK_KERNELS	folder with RELEASE/vmlinuz and its modules; the build root's by default
#	HCABLK_SLOW	how much more time than usual everything may take, a whole number
#	HCABLK_RDMA	the guests' RDMA device: rxe (soft-RoCE, the default), siw (soft-iWARP), or (make test)
#			rxe-large: soft-RoCE with memory regions of 8 MiB, not of 2; hca: the tests' own, in one guest
#	HCABLK_PARAMETERS	parameters of modules in the guests: MODULE.NAME=VALUE, separated by blanks
#	HCABLK_MISSING	folder with modules of Linux that the kernel lacks, or that go before its own
#	HCABLK_OTHER	folder with hcablk*.ko of another build, for the tests of feature upgrade
#	HCABLK_SYSTEM	the folder of scripts/machine-image, for the tests of feature machine, and
#	HCABLK_PACKAGES	the folder with Debian packages
#	HCABLK_MEMORY	a guest's memory in MiB
#	HCABLK_LANES	how many sets of guests run tests side by side; when a set is asked for 3, or 2 without memory for so
#			many, else 1
#	HCABLK_MESSAGES	how many messages the tests of feature hostile send
#	HCABLK_WHOLE	when not empty they send ten times as many, and sweeps take all values
#	HCABLK_SEED	what their messages come from, and which values a sweep takes; 1 when not set, in CI the number of
#			the turn
#	HCABLK_FIRST	the first message's number; 0 when not set
#	HCABLK_REISSUES	how many requests tests fencing/ghost-writes and failover/ghost-writes have issued again
#	HCABLK_KILLS	how often tests reservations/target-killed and lost-writes/target-killed kill the target's machine; 3 and 2
#			when not set
#	HCABLK_PREEMPTIONS
#			how often test reservations/preempt-drains preempts a host that writes; 20 when not set
#	HCABLK_STOP_AT	a regular expression: a test is over when a point like this has failed ("not ok 1 - …")
#	HCABLK_MINUTES	for how long test soak/faults breaks paths under load; 1 when not set

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

: "${HCABLK_KREL:?is not set: run the tests by "make test"}"
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
# Three sets of three guests where there is memory for them, and they do not take their time as it is.
available=$(awk '/^MemAvailable:/ { print int($2 / 1024) }' /proc/meminfo)
case "$*" in
'' | heart | all | turn:* | short:*)
	if [ "${HCABLK_SLOW:-1}" = 1 ] && [ "$available" -gt $((9 * (${HCABLK_MEMORY:-768} + 300))) ]; then
		: "${HCABLK_LANES:=3}"
	else
		: "${HCABLK_LANES:=2}"
	fi
	;;
esac
[ -z "${HCABLK_LANES:-}" ] || arguments+=(--lanes "$HCABLK_LANES")
[ -z "${HCABLK_BIN:-}" ] || arguments+=(--command "$HCABLK_BIN")

# In a process namespace of its own no guest outlives the runner, however that ends.
export PYTHONDONTWRITEBYTECODE=1
exec unshare --pid --fork --kill-child=KILL -- \
	python3 "$tests/harness/run.py" "${arguments[@]}" "$@"
