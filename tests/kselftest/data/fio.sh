#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: fio verifies what it wrote, with many requests of all sizes under way on every queue.
# turn: 9
# takes: 50
# timeout: 480

. "${0%/*}/../lib/lib.sh"

share c1
check "fio verifies 4 KiB writes, 128 at a time" fio c1 "--name=v --filename=$device --rw=randwrite --bs=4k --iodepth=128 --size=$(few 6)M \
	--verify=crc32c --verify_fatal=1"
check "fio verifies mixed sizes in two jobs" fio c1 "--name=v --filename=$device --rw=randrw --bsrange=512-1M \
	--blockalign=512 --iodepth=32 --numjobs=2 --size=$(few 16)M --offset_increment=100M --verify=crc32c --verify_fatal=1"
check "fio verifies writes of 2 MiB in order" fio c1 "--name=v --filename=$device --rw=write --bs=2M --iodepth=8 --size=$(few 32)M \
	--verify=sha1 --verify_fatal=1"
check "data written through the page cache is read back" on c1 "dd if=/dev/urandom of=/tmp/data bs=1M count=8 && dd if=/tmp/data of=$device bs=3k conv=fsync &&
	sync && echo 3 > /proc/sys/vm/drop_caches && cmp -n $((8 << 20)) $device /tmp/data; r=\$?; rm /tmp/data; exit \$r"
check "fio verifies writes through io_uring" on c1 "fio --name=v --filename=$device --direct=1 --ioengine=io_uring --rw=randwrite --bs=16k \
	--iodepth=32 --size=$(few 8)M --verify=crc32c --verify_fatal=1"
same "the client has no errors" 0 "$(stat_of c1 $initiator/vol1 errors)"
