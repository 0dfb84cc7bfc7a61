# shellcheck shell=bash disable=SC2034,SC2154 # names are for the tests, and from lib.sh
# SPDX-License-Identifier: GPL-2.0
#
# Functions of the tests of peer-to-peer DMA. The target's drives are below one PCIe switch, with two cards that have only memory,
# of 16 and 4 MiB; a third card is at the root, where no drive reaches it. The third drive has a controller memory buffer of its
# own.

drive3=/dev/drive2

# pci_dir ADDRESS: prints the PCI device's directory in sysfs.
pci_dir() {
	echo "/sys/bus/pci/devices/$1"
}

# Finds the cards: $card, $small_card and $far_card.
_cards=$(on target 'for d in /sys/bus/pci/devices/*; do
	[ "$(cat "$d/device")" != 0x1110 ] || echo "$(awk "NR == 3 { print \$1, \$2 }" "$d/resource") ${d##*/}"
done') || die "cannot list the target's PCI devices"
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

# Peer memory reaches the wire in these ways. iWARP registers all memory, and registered memory is RAM.
ways="bounce direct"
[ "$rdma" != siw ] || ways=bounce

# virtual bounce|direct: prints the value of the target's parameter with which soft-RoCE takes this way.
virtual() {
	case $1 in
	bounce) echo 0 ;;
	direct) echo 1 ;;
	esac
}

# lend ADDRESS: lets a card lend its memory.
lend() {
	must on target "modprobe hcablk_pcimem && echo hcablk_pcimem > $(pci_dir "$1")/driver_override &&
		echo $1 > /sys/bus/pci/drivers_probe && [ \"\$(cat $(pci_dir "$1")/p2pmem/published)\" = 1 ]"
}

# only_in_card ADDRESS FILE: checks in a trace of QEMU that the drives' DMA used memory of that card only.
only_in_card() {
	local first last line transfers=0 outside=0
	read -r first last _ <<< "$(on target "awk 'NR == 3' $(pci_dir "$1")/resource")"
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

# reconnect NAME: c1 disconnects, and connects again when the target has back the memory that the session had leased.
reconnect() {
	disconnect c1 "$1"
	must wait_until target 30 "[ -z \"\$(cat $target/volumes/$1/clients)\" ]"
	connect c1 "$1"
}
