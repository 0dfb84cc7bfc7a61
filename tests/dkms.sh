#!/usr/bin/env bash
# shellcheck disable=SC2317 # functions are called by step and point
# SPDX-License-Identifier: GPL-2.0
#
# dkms.sh: on a Debian with only the headers and the source of the kernel under
# test, installs the package hcablk-dkms of build/deb, which builds the modules,
# and runs the tests named (data/flush by default) with those. Prints TAP. `make test-dkms`
# calls it by scripts/with-guests.

set -euo pipefail
. "$(dirname -- "${BASH_SOURCE[0]}")/../scripts/lib.sh"

MIRROR=${HCABLK_MIRROR:-http://deb.debian.org/debian}
release=$HCABLK_KREL
read -r series _ version _ < <(kernels | awk -v r="$release" '$2 == r')
root=$BUILD/dkms-root
log=$BUILD/log/dkms.log
modules=$BUILD/dkms-modules
point=0 failed=0

# point "DESCRIPTION" COMMAND…
point() {
	local what=$1 word=ok
	shift
	point=$((point + 1))
	"$@" || word="not ok"
	[ "$word" = ok ] || failed=$((failed + 1))
	echo "$word $point - $what"
	[ "$word" = ok ]
}

end() {
	echo "1..$point"
	echo "$((point - failed)) passed, $failed failed"
	[ "$failed" = 0 ]
	exit
}

bootstrap() {
	as_root rm -rf --one-file-system "$root"
	as_root unshare -m --propagation private -- mmdebstrap --mode=root --variant=apt --architectures=amd64 \
		--keyring="${HCABLK_KEYRING:-/usr/share/keyrings/debian-archive-keyring.gpg}" --dpkgopt=force-unsafe-io \
		--aptopt='Acquire::Languages "none"' --aptopt='APT::Install-Recommends "false"' --skip=cleanup/apt/lists \
		trixie "$root" "deb $MIRROR trixie main" "deb $MIRROR trixie-updates main" "deb $MIRROR trixie-backports main" &&
		as_root cp "$BUILD"/deb/hcablk-dkms_*.deb "$root/root/"
}

in_machine() { "$SCRIPTS/in-root" --write "$root" -e DEBIAN_FRONTEND=noninteractive -- "$@"; }

# The headers are installed first, as on a machine that already runs its kernel.
install_kernel() {
	in_machine apt-get install -y "linux-headers-$release=$version" "linux-source-$series=$version"
}

install_package() {
	in_machine sh -c 'apt-get install -y /root/hcablk-dkms_*.deb'
}

built() {
	in_machine dkms status | tee -a "$log" | grep -q "^hcablk/.*, $release, x86_64: installed"
}

# dkms compresses modules as the kernel's own are.
collect() {
	local module
	rm -rf "$modules"
	mkdir -p "$modules"
	for module in "$root/usr/lib/modules/$release/updates/dkms"/hcablk*.ko*; do
		as_root cp "$module" "$modules/" || return 1
	done
	"$SCRIPTS/in-root" -- sh -c 'for f in "$1"/*.xz; do [ ! -e "$f" ] || xz -d "$f"; done' sh "$modules"
	[ "$(cd "$modules" && echo *)" = "hcablk.ko hcablk_core.ko hcablk_pcimem.ko hcablk_target.ko" ]
}

purge() {
	in_machine sh -c 'apt-get purge -y hcablk-dkms && [ ! -e /var/cache/hcablk-dkms ] && ! ls /lib/modules/*/updates/dkms/hcablk*'
}

echo "TAP version 14"
step "dkms: a Debian machine" "$log.bootstrap" bootstrap || exit 1
step "dkms: its kernel's headers and source" "$log.kernel" install_kernel || exit 1
step "dkms: installing the package, which builds the modules" "$log" install_package || true
point "dkms has built and installed the modules for $release" built || { show_failure "$log"; end; }
point "all four modules exist" collect || end
point "tests pass with these modules" env HCABLK_MODDIR="$modules" "$TOP/tests/run.sh" "${@:-data/flush}" || true
step "dkms: purging the package" "$log.purge" purge && purged=true || purged=false
point "a purge removes modules and cache" "$purged" || true
as_root rm -rf --one-file-system "$root"
end
