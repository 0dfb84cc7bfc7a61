#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: a test that leaves a file where a disk's node would be fails.
# group: harness
# must-fail: /dev/hcablk0 is a file
# guests: c1

. "${0%/*}/lib.sh"

check "a file is made" on c1 "echo late > /dev/hcablk0"
