# shellcheck shell=bash
# SPDX-License-Identifier: GPL-2.0
# Shared by the scripts: paths, messages, one line of progress for each
# step, and the build root's kernels. Scripts source it; it is never run.

shopt -s inherit_errexit
# A user's PATH may lack the folders of root's programs.
PATH=$PATH:/usr/sbin:/sbin

TOP=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.." && pwd -P)
SCRIPTS=$TOP/scripts
CACHE=${HCABLK_CACHE:-${XDG_CACHE_HOME:-${HOME:?HOME is not set}/.cache}/hcablk}
ROOT=$CACHE/root
# shellcheck disable=SC2034 # used where this is sourced
BUILD=$TOP/build
JOBS=${JOBS:-$(nproc)}

# shellcheck source=scripts/supported-kernels
. "$SCRIPTS/supported-kernels"

say() { printf '%s\n' "$*" >&2; }

die() {
	local line
	say "hcablk: $1"
	shift
	for line; do say "        $line"; done
	exit 1
}

# All paths below the cache are the same inside and outside of the build root,
# so they must be absolute.
case $CACHE in
/*) ;;
*) die "the cache folder must be an absolute path, not '$CACHE'" ;;
esac
case $TOP$CACHE in
*[[:space:]:%]*) die "the kernel's build cannot handle blanks, ':' or '%' in paths:" "$TOP" "$CACHE" ;;
esac

# step TEXT LOG COMMAND…: runs the command with its output in LOG and shows one
# line with the seconds it took. On failure it shows the end of the log and returns the
# command's status. With V=1 it shows the output at once.
step() {
	local text=$1 log=$2 start=$SECONDS rc=0 ticker
	shift 2
	mkdir -p "${log%/*}"
	if [ -n "${V:-}" ] && [ "$V" != 0 ]; then
		say "== $text"
		"$@" 2>&1 | tee "$log" >&2
		rc=${PIPESTATUS[0]}
		say "== $text: $((SECONDS - start)) s"
		return "$rc"
	fi
	printf '  %-58s' "$text" >&2
	# Do not hold a lock longer than this script does.
	_ticker "$$" "$text" 5>&- 6>&- 7>&- 8>&- 9>&- &
	ticker=$!
	"$@" >"$log" 2>&1 || rc=$?
	kill "$ticker" 2>/dev/null || true
	wait "$ticker" 2>/dev/null || true
	[ -t 2 ] && printf '\r  %-58s' "$text" >&2
	if [ "$rc" = 0 ]; then
		printf '%5d s\n' $((SECONDS - start)) >&2
	else
		printf '%5d s, failed\n' $((SECONDS - start)) >&2
		show_failure "$log"
	fi
	return "$rc"
}

_ticker() {
	local n=0
	trap 'exit 0' TERM
	while kill -0 "$1" 2>/dev/null; do
		sleep 1 &
		wait $!
		n=$((n + 1))
		if [ -t 2 ]; then
			printf '\r  %-58s%5d s' "$2" "$n" >&2
		elif [ $((n % 60)) = 0 ]; then
			printf ' %d s …' "$n" >&2
		fi
	done
}

show_failure() {
	say "----- end of $1"
	tail -n "${FAILURE_LINES:-40}" -- "$1" >&2
	say "-----"
}

# as_root COMMAND…: runs it as root
as_root() {
	if [ "$(id -u)" = 0 ]; then
		"$@"
	elif command -v sudo >/dev/null; then
		sudo -- "$@"
	else
		die "this needs root and there is no sudo: $1" \
			"Run make as root, or install sudo."
	fi
}

# lock FD FILE WHAT: takes an exclusive lock; prints a line when it must wait.
lock() {
	mkdir -p "${2%/*}"
	eval "exec $1>>\"\$2\""
	if ! flock -n "$1"; then
		say "  waiting for another hcablk process to finish with $3"
		flock "$1"
	fi
}

# Succeeds if series $1 (such as 7.2) is within the supported range.
series_supported() {
	[[ $1 =~ ^[0-9]+\.[0-9]+$ ]] || return 1
	local n min max
	n=$((${1%.*} * 1000 + ${1#*.}))
	min=$((${KERNEL_MIN%.*} * 1000 + ${KERNEL_MIN#*.}))
	max=$((${KERNEL_MAX%.*} * 1000 + ${KERNEL_MAX#*.}))
	((min <= n && n <= max))
}

# Prints the series of a release: 7.2.12+deb13-amd64 → 7.2
series_of() { sed -E 's/^([0-9]+\.[0-9]+).*/\1/' <<<"$1"; }

# Prints the kernels in the build root, oldest first: "series release source-version image";
# image is "yes" if the kernel itself is there and not only its headers.
kernels() {
	local series rest
	while read -r series rest; do
		if series_supported "$series"; then
			printf '%s %s\n' "$series" "$rest"
		fi
	done <"$ROOT/etc/hcablk-kernels"
}

# Prints the release that tests run on: the newest with an image (of SERIES, if given).
kernel_under_test() {
	kernels | awk -v s="${SERIES:-}" '$4 == "yes" && (s == "" || $1 == s) { r = $2 } END { print r }'
}

# Prints the releases that SERIES selects (all by default), oldest first.
wanted_releases() {
	local found
	if [ -n "${SERIES:-}" ]; then
		series_supported "$SERIES" ||
			die "kernel series $SERIES is not supported: this hcablk is for $KERNEL_MIN to $KERNEL_MAX" \
				"Install one of Debian's kernels of these series, from trixie-backports:" \
				"  apt-get install -t trixie-backports linux-image-amd64 linux-headers-amd64"
		found=$(kernels | awk -v s="$SERIES" '$1 == s { print $2 }')
		[ -n "$found" ] ||
			die "Debian's archive had no kernel $SERIES.x when the build root was made" \
				"'make update' looks again; there are now: $(kernels | awk '{ printf "%s ", $2 }')"
	else
		found=$(kernels | awk '{ print $2 }')
	fi
	printf '%s\n' "$found"
}

# Change this when debug kernels of an older scripts/debug-kernel are of no use any more.
DEBUG_KERNEL_FORMAT=2

# Prints the hash of a debug kernel's inputs: the source, the options and the
# compilers, which must match those of modules.
debug_kernel_hash() {
	{
		kernels | grep -F " $(kernel_under_test) "
		echo "$DEBUG_KERNEL_FORMAT"
		grep '^CONFIG_' "$TOP/tests/debug/config"
		awk '/^Package: (rustc|clang-19|bindgen|lld-19)$/ { p = $2 } /^Version: / && p { print p, $2; p = "" }' \
			"$ROOT/var/lib/dpkg/status"
	} | sha256sum | cut -c1-16
}

# debug_kernel: sets debug_dir and debug_release to those of the existing debug kernel.
# shellcheck disable=SC2034 # used where this is sourced
debug_kernel() {
	debug_dir=$CACHE/debug/$(debug_kernel_hash)
	debug_release=$(sed -n 's/^release=//p' "$debug_dir/info")
}
