#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: a broken invariant that a driver tells of in a guest's kernel log fails a test that has passed by itself.
# group: harness
# guests: c1
# must-fail: c1's kernel: .*hcablk: BUG: hcablk-test asks

. "${0%/*}/lib.sh"

check "a guest logs what the drivers' broken!() does" on c1 "echo '<4>hcablk: BUG: hcablk-test asks' > /dev/kmsg"
