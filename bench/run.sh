#!/usr/bin/env bash
# SPDX-License-Identifier: GPL-2.0
#
# run.sh [ROW…]
#	measures hcablk and its competitors: all rows, or those named by peer, load
#	or glob (see bench/README.md). Usually called by `make bench T=…`.
#
# From the environment (scripts/with-guests sets them): HCABLK_CACHE,
# HCABLK_KREL, HCABLK_MODDIR, HCABLK_BIN; and
#	QUICK=1		only the rows that the wanted ratios need
#	COUNT=no	measure the rows, without the second boot, which counts
#	LINK=two	two guests and a virtual network between them, in real time
#	LINK=hca	two HCAs of the tests' own in one guest; LINK=hca-iommu: with an IOMMU
#	REPEAT=N	measure each row in N boots, and report the median and the span
#	SAVE=FILE	keep the results there, too
#	CONNECT="OPTION…"	connect with these options of `hcablk connect`
#	PROFILE=1	print the instructions of these rows by function, without measuring them

set -euo pipefail

bench=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd -P)
top=${bench%/*}

if [ -z "${HCABLK_IN_ROOT:-}" ]; then
	"$top/scripts/build-missing" rnbd "${HCABLK_KREL:?is not set: run the benchmark with "make bench"}"
	HCABLK_LOGS=$top/build/bench/$(date +%Y%m%d-%H%M%S)-$$
	HCABLK_RNBD=$HCABLK_CACHE/rnbd/$HCABLK_KREL
	HCABLK_COMMIT=$(git -C "$top" describe --always --dirty --abbrev=12 2>/dev/null || echo unknown)
	export HCABLK_LOGS HCABLK_RNBD HCABLK_COMMIT
	vars=()
	for name in HCABLK_KREL HCABLK_MODDIR HCABLK_BIN HCABLK_LOGS HCABLK_RNBD HCABLK_COMMIT HCABLK_ACCEL QUICK COUNT LINK SAVE PROFILE CONNECT REPEAT; do
		[ -z "${!name:-}" ] || vars+=(-e "$name=${!name}")
	done
	exec "$top/scripts/in-root" -C "$top" "${vars[@]}" -- "$bench/run.sh" "$@"
fi

arguments=()
[ -z "${QUICK:-}" ] || arguments+=(--quick)
[ "${COUNT:-}" != no ] || arguments+=(--no-count)
[ -z "${PROFILE:-}" ] || arguments+=(--profile)
case ${LINK:-one} in
one) ;;
two | hca | hca-iommu) arguments+=(--link "$LINK") ;;
*) echo "bench: LINK is one, two, hca or hca-iommu, not $LINK" >&2 && exit 2 ;;
esac
[ -z "${REPEAT:-}" ] || arguments+=(--repeat "$REPEAT")
[ -z "${SAVE:-}" ] || arguments+=(--save "$SAVE")

# In its own process namespace, so that no guest outlives this script.
export PYTHONDONTWRITEBYTECODE=1
exec unshare --pid --fork --kill-child=KILL -- python3 "$bench/bench.py" "${arguments[@]}" "$@"
