#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: a target that listens at an IPv6 address is used by it, and at another port beside the first.
# group: clients

. "${0%/*}/lib.sh"

must on target 'hcablk target listen --address :: --port 7750'
export_volume vol1 "$drive" --no-port c1
device=$(on c1 "hcablk connect $target_address6 vol1 --port 7750") || die "c1 connects by IPv6"
pass "c1 connects by IPv6"
check "data goes over it" on c1 "hcablk-scatter $device random 61 16"
