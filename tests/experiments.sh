#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0
#
# Makes the pages of `hcablk bench`, build/experiments/EXPERIMENT, from a run in guests. Called by `make experiments`.

# Outside of the runner: let it boot the guests and run this script.
if [ -z "${HCABLK_CONTROL:-}" ]; then
	exec "$(dirname -- "${BASH_SOURCE[0]}")/run.sh" --demo "$(realpath -- "${BASH_SOURCE[0]}")"
fi

. "${0%/*}/kselftest/lib/lib.sh"
. "${0%/*}/kselftest/lib/p2p.sh"
. "${0%/*}/kselftest/lib/experiments.sh"

pages=${0%/*}/../build/experiments
rm -rf "$pages"
mkdir -p "$pages"

# experiment NAME OPTION…: runs an experiment, and copies its folder
experiment() {
	local name=$1
	shift
	serve
	case $name in
	scale | ocfs2)
		serve_client
		set -- "$@" --client-through "'$client_through'"
		;;
	esac
	check "$name" bench "$name" --through "'$through'" --drive "$drive" --span 256 --provider "$card" "$@"
	join part
	on c1 "tar -C /tmp -cf - $name | base64" | base64 -d | tar -C "$pages" -xf - || die "cannot copy the pages of $name"
	pass "build/experiments/$name/index.html"
}

lend "$card"
# Soft-RoCE in the place of an HCA that reaches peer memory.
must on target 'modprobe hcablk_target p2p_virtual=1'
experiment selftest --load 16
experiment interference --seconds 5 --size 262144 --threads 1
experiment local-remote --seconds 2 --depths 1,16
experiment overlap --requests 8 --seconds 2
experiment database --seconds 3
experiment scale --seconds 2 --volumes 1,2,4,8,16
experiment ocfs2 --seconds 5 --small-mib 16 --large-mib 48 --web-files 32 --tile 128 --sizes 65536,262144,1048576
