#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: where the kernel enforces signatures, modules signed by a key of the firmware load, and others do not.
# turn: 10
# takes: 30
# guests: uefi
# skips: debug

. "${0%/*}/../lib/lib.sh"

[ "$slow" = 1 ] || skip "the debug kernel does not check signatures"

scripts=$(realpath "${0%/*}/../../../scripts")
signed=$TMPDIR/signed
modules='hcablk_core hcablk'

# push FILE: copies a file of the runner into the guest's /tmp, in parts, since the length of a command is limited.
push() {
	local part
	must on uefi "rm -f /tmp/push"
	while read -r part; do
		must on uefi "echo $part >> /tmp/push"
	done < <(gzip -c "$1" | base64 -w 90000; echo)
	must on uefi "base64 -d /tmp/push | gunzip > /tmp/${1##*/} && rm /tmp/push"
}

# load MODULE: prints the output of insmod
load() {
	on uefi "insmod /tmp/$1.ko" 2>&1
}

like "a keyring of the kernel has the firmware's key" 'hcablk test' "$(on uefi 'dmesg | grep -i "loaded X.509 cert"')"
mkdir -p "$signed"
for module in $modules; do
	must on uefi "cp /usr/lib/modules/\$(uname -r)/updates/$module.ko /tmp/$module.ko"
	# The module as the guest has it: without debug information.
	on uefi "gzip -c /tmp/$module.ko | base64 -w 0" | base64 -d | gunzip > "$signed/$module.ko" || die "the module $module"
done
must on uefi 'modprobe -a configfs rdma_cm && modprobe hcablk_core && modprobe hcablk && modprobe -r hcablk && modprobe -r hcablk_core'
must on uefi 'echo 1 > /sys/module/module/parameters/sig_enforce'
# The message of the kernel or of the program.
no='[Rr]equired key not available|[Kk]ey was rejected by service'
like "an unsigned module is refused" "$no" "$(load hcablk_core)"
like "the log reports the unsigned module" 'Loading of .*unsigned module.* is rejected' "$(in_log uefi 'is rejected')"

must openssl req -new -x509 -newkey rsa:2048 -nodes -days 30 -subj '/CN=somebody else' -keyout "$TMPDIR/other.key" -out "$TMPDIR/other.pem"
refuse "signing with a key without its certificate is refused" "$scripts/sign-modules" "$TMPDIR/other.key" "$TMPDIR/signing.pem" "$signed"
check "a stranger signs the modules" "$scripts/sign-modules" "$TMPDIR/other.key" "$TMPDIR/other.pem" "$signed"
push "$signed/hcablk_core.ko"
like "a module signed by an unknown key is refused" "$no" "$(load hcablk_core)"

check "the administrator signs the modules again" "$scripts/sign-modules" "$TMPDIR/signing.key" "$TMPDIR/signing.pem" "$signed"
for module in $modules; do
	push "$signed/$module.ko"
	same "$module names its signer" 'hcablk test' "$(on uefi "modinfo -F signer /tmp/$module.ko")"
	check "$module loads" load "$module"
done
must on uefi 'rmmod hcablk hcablk_core'
must on uefi "printf x | dd of=/tmp/hcablk_core.ko bs=1 seek=4096 conv=notrunc"
like "a module that was changed after signing is refused" "$no" "$(load hcablk_core)"
# A kernel that enforces signatures cannot stop enforcing them.
must vm kill uefi
