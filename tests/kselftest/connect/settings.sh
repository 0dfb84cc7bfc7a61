#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: wrong, incomplete and late settings are refused with the right error, on both sides.
# turn: 20
# takes: 10

. "${0%/*}/../lib/lib.sh"

must on c1 'modprobe hcablk'
must on target 'modprobe hcablk_target'

# set_error GUEST DIRECTORY FILE VALUE: prints the error of writing the value to the file
set_error() {
	on "$1" "env echo '$4' > $2/$3" 2>&1
}
bad() {
	like "$1: $3='$4' is refused" "${5:-Invalid|out of range|too long}" "$(set_error "$1" "$2" "$3" "$4")"
}
good() {
	silent "$1: $3='$4' is accepted" set_error "$1" "$2" "$3" "$4"
	same "$1: $3 reads back as written" "${5:-$4}" "$(on "$1" "cat $2/$3")"
}

dev=$initiator/dev
must on c1 "mkdir $dev"
same "a new device has the state new" new "$(on c1 "cat $dev/state")"
for default in port=7744 queues=0 poll_queues=0 queue_depth=128 io_timeout=30 connect_timeout=10 reconnect_delay=1 ctrl_loss_tmo=600 fast_io_fail_tmo=-1 keep_alive_tmo=5 remote_invalidate=1 \
	small_read=8192 small_write=4096 eager_write=32768 max_io_kib=1024 message_requests=8 batch_upper=32 batch_lower=16; do
	same "the default of ${default%=*}" "${default#*=}" "$(on c1 "cat $dev/${default%=*}")"
done
like "a device without address and volume cannot be enabled" Invalid "$(set_error c1 $dev enable 1)"
bad c1 $dev queues 128
bad c1 $dev poll_queues 127
bad c1 $dev keep_alive_tmo 0
bad c1 $dev keep_alive_tmo 601
bad c1 $dev queue_depth 0
bad c1 $dev queue_depth 1025
bad c1 $dev queue_depth many
bad c1 $dev port 65536
bad c1 $dev address 10.0.0
bad c1 $dev volume 'a/b'
bad c1 $dev volume 12345678901234567
bad c1 $dev host_id 1234
bad c1 $dev remote_invalidate 2
bad c1 $dev small_read 65537
bad c1 $dev small_write 65537
bad c1 $dev message_requests 0
bad c1 $dev message_requests 9
bad c1 $dev eager_write 1048577
bad c1 $dev batch_upper 1025
bad c1 $dev batch_lower 1025
bad c1 $dev small_read 4k
bad c1 $dev enable 7
good c1 $dev queue_depth 1024
good c1 $dev small_read 0
good c1 $dev small_read 65536
good c1 $dev volume 1234567890123456
good c1 $dev address fd77::1
good c1 $dev address 10.77.0.1
good c1 $dev host_id 00000000-0000-4000-8000-0000000000aa
refuse "a device name with a blank is refused" on c1 "mkdir '$initiator/a b'"
must on c1 "rmdir $dev"

volume=$target/volumes/vol1
must on target "mkdir $volume && echo 1 > $volume/insecure"
like "a volume without a path cannot be enabled" "Invalid|No such" "$(set_error target $volume enable 1)"
must on target "echo /dev/nothere > $volume/path"
like "a volume whose path does not exist cannot be enabled" "No such" "$(set_error target $volume enable 1)"
like "the volume's error names the missing path" "cannot be opened \(error -2\)\$" "$(on target "cat $volume/error")"
must on target "echo /dev/null > $volume/path"
like "a volume whose path is a character device cannot be enabled" "[Bb]lock device" "$(set_error target $volume enable 1)"
must on target "modprobe ext4; mkfs.ext4 -q -F $drive2 100M; mkdir -p /mnt/used; mount $drive2 /mnt/used;
	echo $drive2 > $volume/path"
like "a volume whose drive is mounted cannot be enabled" "busy" "$(set_error target $volume enable 1)"
must on target 'umount /mnt/used'
silent "the volume can be enabled after the unmount" set_error target $volume enable 1
like "the path of an enabled volume cannot be changed" busy "$(set_error target $volume path "$drive")"
check "a drive can be exported under a second name" on target "mkdir $target/volumes/vol2 &&
	echo $drive2 > $target/volumes/vol2/path && echo 1 > $target/volumes/vol2/read_only &&
	echo 1 > $target/volumes/vol2/enable"
refuse "an exported drive cannot be mounted" on target "mount $drive2 /mnt/used"
must on target "echo 0 > $target/volumes/vol2/enable && rmdir $target/volumes/vol2"
refuse "a volume name with a blank is refused" on target "mkdir '$target/volumes/a b'"
refuse "a volume name that is too long is refused" on target "mkdir $target/volumes/12345678901234567"
refuse "a malformed host id is refused" on target "mkdir $volume/hosts/somebody"
must on target "mkdir $volume/hosts/$(host_id c1)"

port=$target/ports/1
must on target "mkdir $port"
same "the default port is 7744" 7744 "$(on target "cat $port/port")"
bad target $port port 70000
bad target $port address nowhere
silent "a port can be enabled" set_error target $port enable 1
like "the settings of an enabled port cannot be changed" busy "$(set_error target $port port 7745)"
must on target "mkdir $target/ports/2"
like "two ports cannot listen at the same address" "in use|busy|Cannot assign" "$(set_error target $target/ports/2 enable 1)"

connect c1 vol1
like "the settings of an enabled device cannot be changed" busy "$(set_error c1 $initiator/vol1 queues 1)"
before=$(on c1 "cat $initiator/vol1/session")
silent "enabling an enabled device is no error" set_error c1 $initiator/vol1 enable 1
same "enabling an enabled device does not replace its session" "$before" "$(on c1 "cat $initiator/vol1/session")"
check "the disk can be read afterwards" on c1 "dd if=$device of=/dev/null bs=4k count=1 iflag=direct"
