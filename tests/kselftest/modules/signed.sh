#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: where the kernel insists on signatures, modules signed by a key of the firmware's load, and no others.
# turn: 10
# takes: 30
# guests: uefi
# skips: debug

. "${0%/*}/../lib/lib.sh"

[ "$slow" = 1 ] || skip "the debug kernel does not check signatures"

scripts=$(realpath "${0%/*}/../../../scripts")
signed=$TMPDIR/signed
modules='hcablk_core hcablk'

# push FILE: a file of the runner's is in the guest's /tmp; in parts, since a command has a longest length.
push() {
	local part
	must on uefi "rm -f /tmp/push"
	while read -r part; do
		must on uefi "echo $part >> /tmp/push"
	done < <(gzip -c "$1" | base64 -w 90000; echo)
	must on uefi "base64 -d /tmp/push | gunzip > /tmp/${1##*/} && rm /tmp/push"
}

# load MODULE: prints what insmod says
load() {
	on uefi "insmod /tmp/$1.ko" 2>&1
}

like "the key of the firmware's is in a keyring of the kernel's" 'hcablk test' "$(on uefi 'dmesg | grep -i "loaded X.509 cert"')"
mkdir -p "$signed"
for module in $modules; do
	must on uefi "cp /usr/lib/modules/\$(uname -r)/updates/$module.ko /tmp/$module.ko"
	# As it is in the guest: what is about debugging is left out.
	on uefi "gzip -c /tmp/$module.ko | base64 -w 0" | base64 -d | gunzip > "$signed/$module.ko" || die "the module $module"
done
must on uefi 'modprobe -a configfs rdma_cm && modprobe hcablk_core && modprobe hcablk && modprobe -r hcablk && modprobe -r hcablk_core'
must on uefi 'echo 1 > /sys/module/module/parameters/sig_enforce'
# Kinds of the message: of the kernel, and of the program.
no='[Rr]equired key not available|[Kk]ey was rejected by service'
like "one that is not signed is refused" "$no" "$(load hcablk_core)"
like "and the log says so" 'Loading of .*unsigned module.* is rejected' "$(in_log uefi 'is rejected')"

must openssl req -new -x509 -newkey rsa:2048 -nodes -days 30 -subj '/CN=somebody else' -keyout "$TMPDIR/other.key" -out "$TMPDIR/other.pem"
refuse "a key without its certificate is refused" "$scripts/sign-modules" "$TMPDIR/other.key" "$TMPDIR/signing.pem" "$signed"
check "somebody else signs them" "$scripts/sign-modules" "$TMPDIR/other.key" "$TMPDIR/other.pem" "$signed"
push "$signed/hcablk_core.ko"
like "by a key that the kernel does not know it is refused" "$no" "$(load hcablk_core)"

check "the administrator signs them anew" "$scripts/sign-modules" "$TMPDIR/signing.key" "$TMPDIR/signing.pem" "$signed"
for module in $modules; do
	push "$signed/$module.ko"
	same "$module names who has signed it" 'hcablk test' "$(on uefi "modinfo -F signer /tmp/$module.ko")"
	check "$module loads" load "$module"
done
must on uefi 'rmmod hcablk hcablk_core'
must on uefi "printf x | dd of=/tmp/hcablk_core.ko bs=1 seek=4096 conv=notrunc"
like "one that was changed is refused" "$no" "$(load hcablk_core)"
# What insists cannot be told to stop.
must vm kill uefi
