#!/bin/bash
# SPDX-License-Identifier: GPL-2.0
# Proves: behind an IOMMU that ends each mapping at once, requests of every shape arrive whole and at their place, those of nvme-rdma, too; the devices report every access without a mapping.
# turn: 14
# takes: 30
# guests: hca-iommu
# timeout: 480
# expect-log: WARNING: .*hca/dma.c.* at hca_dma_copy\+|Call Trace:

. "${0%/*}/../lib/lib.sh"
. "${0%/*}/../lib/hca.sh"

hca_in hca-iommu
hca_pair
for dev in hca0 hca1; do
	same "$dev uses an IOMMU that ends mappings at once" DMA \
		"$(on c1 "cat /sys/class/infiniband/$dev/device/iommu_group/type")"
done
hca_verify
hca_end

# Linux' own NVMe-oF: a failure with it is a mistake of the test's device.
hca_pair
must on target "modprobe nvmet_rdma && cd /sys/kernel/config/nvmet &&
	mkdir subsystems/test subsystems/test/namespaces/1 ports/1 &&
	echo 1 > subsystems/test/attr_allow_any_host &&
	echo $drive2 > subsystems/test/namespaces/1/device_path && echo 1 > subsystems/test/namespaces/1/enable && cd ports/1 &&
	echo rdma > addr_trtype && echo ipv4 > addr_adrfam && echo $target_address > addr_traddr && echo 4420 > addr_trsvcid &&
	ln -s /sys/kernel/config/nvmet/subsystems/test subsystems/"
must on c1 "modprobe nvme_rdma && echo transport=rdma,traddr=$target_address,trsvcid=4420,nqn=test > /dev/nvme-fabrics"
must wait_until c1 30 "grep -qs rdma /sys/class/nvme/nvme*/transport && ls /sys/class/nvme-subsystem/*/nvme*n1 | grep -q ."
name=$(on c1 'for n in /sys/class/nvme/*; do [ "$(cat $n/transport)" != rdma ] || echo ${n##*/}; done')
must wait_until c1 30 "[ -b /dev/${name}n1 ]"
check "nvme-rdma: memory of every shape is written and read right" on c1 "hcablk-scatter /dev/${name}n1 random $RANDOM 24"
check "nvme-rdma: fio verifies many requests at a time" fio c1 "--name=v --filename=/dev/${name}n1 --rw=randrw --bsrange=512-1M \
	--blockalign=512 --iodepth=32 --numjobs=2 --size=$(few 8)M --offset_increment=100M --verify=crc32c --verify_fatal=1"
for dev in hca0 hca1; do
	same "nvme-rdma: $dev refused and lost nothing" "0 0 0" \
		"$(counted $dev naks) $(counted $dev dma_faults) $(counted $dev resent)"
done
must on c1 "echo 1 > /sys/class/nvme/$name/delete_controller && modprobe -r nvme_rdma"
must on target 'cd /sys/kernel/config/nvmet && rm ports/1/subsystems/test &&
	rmdir ports/1 subsystems/test/namespaces/1 subsystems/test && modprobe -r nvmet_rdma'

# The devices must report a false access: nobody may read a receive buffer of the connection manager.
mapped=$(on c1 "awk '\$3 == 2 { print \$1; exit }' /sys/kernel/debug/hcablk_hca/hca0/mappings")
refuse "a read of an address that is mapped for writes fails" on c1 "echo $mapped > /sys/kernel/debug/hcablk_hca/hca0/read_at"
check "the log reports the read in the wrong direction" wait_log c1 20 "DMA fault: read of $mapped, which is not mapped in this direction"
refuse "a read of an address that is not mapped fails" on c1 'echo 0x12345678 > /sys/kernel/debug/hcablk_hca/hca0/read_at'
check "the log reports the read without a mapping" wait_log c1 20 'DMA fault: read of 0x12345678, which is not mapped'
