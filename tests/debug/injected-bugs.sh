#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0
#
# injected-bugs.sh [NAME… | [usual | debug] I/N | [usual | debug] turn:N]
#	injects bugs and checks that the tests find them: for each patch of
#	tests/debug/injected_bugs (or the named ones, or part I of N, from 0, or those of
#	turn N of CI; of all, or of those for the usual or the debug kernel) a copy of the
#	checkout and of its modules is patched, built and tested. A patch begins with
#	these lines:
#		bug: the bug in one line
#		test: the argument of `make test T=…`
#		report: a regular expression; the run must fail with it
#		turn: the turn of CI that runs it
#		kernel: debug, if only that kernel finds it
# injected-bugs.sh --fit
#	only checks that the patches still fit the source.
#	Prints TAP. `make test-injected` calls it.

set -euo pipefail
. "$(dirname -- "${BASH_SOURCE[0]}")/../../scripts/lib.sh"
# shellcheck source=scripts/supported-kernels
. "$SCRIPTS/supported-kernels"

field() { sed -n "s/^$2: //p" "$1"; }
# kernel_of PATCH: prints usual or debug
kernel_of() { field "$1" kernel | grep . || echo usual; }

# variable PATCH: prints the variable that selects its kernel in scripts/build-modules and scripts/with-guests
variable() { [ "$(kernel_of "$1")" = debug ] && echo DEBUG=1 || echo "SERIES=$KERNEL_MAX"; }

# release_of PATCH: prints that kernel's release
release_of() {
	if [ "$(kernel_of "$1")" = debug ]; then
		debug_kernel
		echo "$debug_release"
	else
		SERIES=$KERNEL_MAX kernel_under_test
	fi
}

# copy_checkout RELEASE: copies the sources, the programs, and the modules for that kernel, so that only the patched part must
# be rebuilt.
copy_checkout() {
	local from=$BUILD/$1 to=$copy/build/$1
	rm -rf --one-file-system "$copy"
	mkdir -p "$copy/build/userspace-tools/release"
	(cd "$TOP" && tar -cf - Makefile Kbuild* c rust initiator hcablk_target pcimem scripts userspace-tools packaging tests) |
		tar -C "$copy" -xf -
	cp -p "$BUILD"/userspace-tools/release/{hcablk,hcablk-bench,hcablk-ublk,hcablk-vhost-user,libhcablk.so} "$copy/build/userspace-tools/release/"
	cp -Rp "$BUILD/userspace-tools/release/examples" "$copy/build/userspace-tools/release/"
	cp -a "$from" "$to"
	# The links lead to the checkout's sources, and the compilers' lists of dependencies name its files.
	rm "$to/.sources"
	find "$to" -name '*.cmd' -exec sed -i "s|$BUILD/|$copy/build/|g" {} +
}

if [ "${1:-}" = --fit ]; then
	for patch in "$TOP"/tests/debug/injected_bugs/*.patch; do
		"$SCRIPTS/in-root" -C "$TOP" -- patch -p1 --dry-run --force --quiet --reject-file=- -i "$patch" >/dev/null ||
			die "the injected bug ${patch##*/} does not fit the source any more"
	done
	exit 0
fi
if [ $# = 0 ]; then
	patches=("$TOP"/tests/debug/injected_bugs/*.patch)
elif [[ $* =~ ^((usual|debug)\ )?([0-9]+)/([1-9][0-9]*)$ ]]; then
	which=${BASH_REMATCH[2]} part=${BASH_REMATCH[3]} parts=${BASH_REMATCH[4]} patches=() n=0
	for patch in "$TOP"/tests/debug/injected_bugs/*.patch; do
		[ "${which:-$(kernel_of "$patch")}" = "$(kernel_of "$patch")" ] || continue
		[ $((n++ % parts)) != "$part" ] || patches+=("$patch")
	done
	[ ${#patches[@]} != 0 ] || die "no injected bug is in part $*"
elif [[ $* =~ ^((usual|debug)\ )?turn:([0-9]+)$ ]]; then
	which=${BASH_REMATCH[2]} turn=${BASH_REMATCH[3]} patches=()
	for patch in "$TOP"/tests/debug/injected_bugs/*.patch; do
		[ "${which:-$(kernel_of "$patch")}" = "$(kernel_of "$patch")" ] || continue
		[ "$(field "$patch" turn)" != "$turn" ] || patches+=("$patch")
	done
else
	patches=("${@/#/$TOP/tests/debug/injected_bugs/}")
	patches=("${patches[@]/%/.patch}")
fi
for patch in "${patches[@]}"; do
	[ -e "$patch" ] || die "there is no injected bug ${patch##*/}" "There are: $(cd "$TOP/tests/debug/injected_bugs" && echo ./*.patch)"
done

copy=$BUILD/injected
[ -e "$BUILD/userspace-tools/release/hcablk" ] || die "the command was not built" "make tools"
mkdir -p "$BUILD/log"
passed=0 failed=0
echo "TAP version 14"
echo "1..${#patches[@]}"
for patch in "${patches[@]}"; do
	name=$(basename "$patch" .patch)
	log=$BUILD/log/injected-$name.log
	kernel=$(variable "$patch")
	env "$kernel" "$SCRIPTS/build-modules"
	copy_checkout "$(release_of "$patch")"
	result=ok
	if ! "$SCRIPTS/in-root" -C "$copy" -- patch -p1 --no-backup-if-mismatch -i "$patch" >"$log" 2>&1; then
		result="not ok" why="the patch does not fit any more"
	elif ! env "$kernel" "$copy/scripts/build-modules" >>"$log" 2>&1; then
		result="not ok" why="it does not build"
	elif env "$kernel" "HCABLK_STOP_AT=$(field "$patch" report)" \
		"$copy/scripts/with-guests" "$copy/tests/run.sh" "$(field "$patch" test)" >>"$log" 2>&1; then
		result="not ok" why="the test passed"
	elif ! grep -qE -- "$(field "$patch" report)" "$log"; then
		result="not ok" why="the test failed, but not with '$(field "$patch" report)'"
	fi
	echo "$result $((passed + failed + 1)) - $name: $(field "$patch" bug)"
	if [ "$result" = ok ]; then
		passed=$((passed + 1))
		grep -m 3 -E -- "$(field "$patch" report)" "$log" | sed 's/^/# /'
	else
		failed=$((failed + 1))
		echo "# $why; see $log"
	fi
done
rm -rf --one-file-system "$copy"
echo "$passed passed, $failed failed"
[ $failed = 0 ]
