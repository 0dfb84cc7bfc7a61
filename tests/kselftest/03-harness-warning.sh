#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: a WARNING in a guest's kernel log fails a test that has passed by itself.
# group: harness
# guests: c1
# must-fail: c1's kernel: .*WARNING: hcablk-test asks

. "${0%/*}/lib.sh"

check "a guest logs a warning" on c1 "echo '<4>WARNING: hcablk-test asks' > /dev/kmsg"
