# shellcheck shell=bash disable=SC2034,SC2154 # names are for the tests, and from lib.sh
# SPDX-License-Identifier: GPL-2.0
#
# What the tests of peer-to-peer DMA share. The target's drives are below one PCIe switch, with two cards that are
# nothing but memory, of 16 and 4 MiB; a third is at the root, where nobody reaches it. The third drive has a
# controller memory buffer of its own.

drive3=/dev/drive2

# of ADDRESS: its directory in sysfs.
of() {
	echo "/sys/bus/pci/devices/$1"
}

# Finds the cards: $card, $small_card and $far_card.
_cards=$(on target 'for d in /sys/bus/pci/devices/*; do
	[ "$(cat "$d/device")" != 0x1110 ] || echo "$(awk "NR == 3 { print \$1, \$2 }" "$d/resource") ${d##*/}"
done') || die "the target's PCI devices"
while read -r _first _last _address; do
	case $_address:$((_last - _first + 1)) in
	0000:00:*) far_card=$_address ;;
	*:$((16 << 20))) card=$_address ;;
	*) small_card=$_address ;;
	esac
done <<< "$_cards"
if [ -z "${card:-}" ] || [ -z "${small_card:-}" ] || [ -z "${far_card:-}" ]; then
	die "the target lacks its memory cards: $_cards"
fi

# The ways there are between peer memory and the wire: what is registered, as everything is on iWARP, is RAM.
ways="bounce direct"
[ "$rdma" != siw ] || ways=bounce

# virtual bounce|direct: the target's parameter that makes soft-RoCE take this way.
virtual() {
	case $1 in
	bounce) echo 0 ;;
	direct) echo 1 ;;
	esac
}

# lend ADDRESS: has a card lend its memory.
lend() {
	must on target "modprobe hcablk_pcimem && echo hcablk_pcimem > $(of "$1")/driver_override &&
		echo $1 > /sys/bus/pci/drivers_probe && [ \"\$(cat $(of "$1")/p2pmem/published)\" = 1 ]"
}

# only_in_card ADDRESS FILE: all that a trace of QEMU says the drives' DMA touched is in that card's memory.
only_in_card() {
	local first last line transfers=0 outside=0
	read -r first last _ <<< "$(on target "awk 'NR == 3' $(of "$1")/resource")"
	while read -r line; do
		[[ $line =~ pci_nvme_map_addr.*\ addr\ (0x[0-9a-f]+)\ len\ ([0-9]+) ]] || continue
		transfers=$((transfers + 1))
		if ((BASH_REMATCH[1] < first || BASH_REMATCH[1] + BASH_REMATCH[2] - 1 > last)); then
			outside=$((outside + 1))
			[ $outside -gt 3 ] || echo "outside: $line"
		fi
	done < "$2"
	echo "$transfers transfers, $outside outside of $first to $last"
	[ $transfers -gt 100 ] && [ $outside = 0 ]
}

# reconnect NAME: c1 connects again when the target has back what the session before had leased.
reconnect() {
	disconnect c1 "$1"
	must wait_until target 30 "[ -z \"\$(cat $target/volumes/$1/clients)\" ]"
	connect c1 "$1"
}
