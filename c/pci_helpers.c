// SPDX-License-Identifier: GPL-2.0
#include <linux/blkdev.h>
#include <linux/io.h>
#include <linux/mm.h>

#include "helpers.h"

const char *hcablk_c_pci_name(struct pci_dev *pdev)
{
	return pci_name(pdev);
}

unsigned long hcablk_c_pci_resource_flags(struct pci_dev *pdev, int bar)
{
	return pci_resource_flags(pdev, bar);
}

u64 hcablk_c_pci_resource_len(struct pci_dev *pdev, int bar)
{
	return pci_resource_len(pdev, bar);
}

bool hcablk_c_device_trylock(struct pci_dev *pdev)
{
	return device_trylock(&pdev->dev);
}

void hcablk_c_device_unlock(struct pci_dev *pdev)
{
	device_unlock(&pdev->dev);
}

struct device *hcablk_c_disk_device(struct block_device *bdev)
{
	return disk_to_dev(bdev->bd_disk);
}

bool hcablk_c_bdev_peers(struct block_device *bdev)
{
	return blk_queue_pci_p2pdma(bdev_get_queue(bdev));
}

bool hcablk_c_ib_peers(struct ib_device *dev)
{
	return ib_dma_pci_p2p_dma_supported(dev);
}

struct page *hcablk_c_virt_to_page(const void *addr)
{
	return virt_to_page(addr);
}

void hcablk_c_sg_of_page(struct scatterlist *sg, struct page *page, unsigned int len)
{
	sg_init_table(sg, 1);
	sg_set_page(sg, page, len, 0);
}

/* Peer memory has struct pages and so no __iomem, but it is behind a bus. */
void hcablk_c_memcpy_fromio(void *to, const void *from, size_t len)
{
	memcpy_fromio(to, (const void __iomem __force *)from, len);
}

void hcablk_c_memcpy_toio(void *to, const void *from, size_t len)
{
	memcpy_toio((void __iomem __force *)to, from, len);
}

u8 hcablk_c_readb(const void *from)
{
	return readb((const void __iomem __force *)from);
}
