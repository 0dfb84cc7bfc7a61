#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: a WARNING or a driver's broken invariant in a guest's kernel log, or a file in place of a disk's node, fails a test whose points are all ok.
# tier: heart
# turn: 1
# takes: 5
# guests: c1
# must-fail: c1's kernel: .*WARNING: hcablk-test asks
# must-fail: c1's kernel: .*hcablk: BUG: hcablk-test asks
# must-fail: left behind: .*/dev/hcablk0 is a file

. "${0%/*}/../lib/lib.sh"

# With the call trace of a known report, too.
check "a guest logs a warning" on c1 "for line in 'WARNING: hcablk-test asks' 'Call Trace:' ' <TASK>' \
		' o2net_flush_wq+0x10/0x80 [ocfs2_nodemanager]' ' </TASK>'; do
	echo \"<4>\$line\" > /dev/kmsg
done"
check "a guest logs a line of the drivers' broken!()" on c1 "echo '<4>hcablk: BUG: hcablk-test asks' > /dev/kmsg"
check "a file is made in place of a disk's node" on c1 "echo late > /dev/hcablk0"
