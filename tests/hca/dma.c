// SPDX-License-Identifier: GPL-2.0
/*
 * The device's access to memory: through DMA addresses only.
 *
 * The tracepoints of the kernel's DMA API report, to the byte, the addresses that
 * are mapped for a card, with length and direction, even without an IOMMU. Each
 * access must be within such a mapping. An IOMMU translates the address; without
 * an IOMMU it is the physical address of the memory; a bus address is an address
 * in a BAR below the same switch. Any other access is a fault, and a splat in the
 * kernel log.
 *
 * dma_lock is held over a check and the access after it, so that no access comes
 * after the dma_unmap_*() of its mapping.
 */
#include <linux/dma-mapping.h>
#include <linux/io.h>
#include <linux/iommu.h>
#include <linux/seq_file.h>
#include <linux/slab.h>
#include <linux/tracepoint.h>
#include <trace/events/dma.h>

#include "hca.h"

static bool check_dma = true;
module_param(check_dma, bool, 0444);
MODULE_PARM_DESC(check_dma, "whether mappings are tracked, and accesses checked against them");

struct hca_mapping {
	struct interval_tree_node node;
	enum dma_data_direction dir;
	bool bus;
};

static struct hca_card *card_of(struct device *dev)
{
	return dev->driver == &hca_pci_driver.driver ? dev_get_drvdata(dev) : NULL;
}

static void note_map(struct hca_card *card, u64 addr, u64 size, enum dma_data_direction dir, bool bus)
{
	struct hca_mapping *mapping = kmalloc(sizeof(*mapping), GFP_ATOMIC | __GFP_NOWARN);
	unsigned long flags;

	spin_lock_irqsave(&card->dma_lock, flags);
	if (mapping) {
		mapping->node.start = addr;
		mapping->node.last = addr + size - 1;
		mapping->dir = dir;
		mapping->bus = bus;
		interval_tree_insert(&mapping->node, &card->mappings);
	} else {
		card->dma_incomplete = true;
	}
	spin_unlock_irqrestore(&card->dma_lock, flags);
}

static void note_unmap(struct hca_card *card, u64 addr, u64 size, enum dma_data_direction dir)
{
	struct interval_tree_node *node;
	struct hca_mapping *mapping = NULL;
	unsigned long flags;
	bool incomplete;

	spin_lock_irqsave(&card->dma_lock, flags);
	incomplete = card->dma_incomplete;
	for (node = interval_tree_iter_first(&card->mappings, addr, addr + size - 1); node;
	     node = interval_tree_iter_next(node, addr, addr + size - 1)) {
		mapping = container_of(node, struct hca_mapping, node);
		if (node->start == addr && node->last == addr + size - 1 && mapping->dir == dir)
			break;
		mapping = NULL;
	}
	if (mapping)
		interval_tree_remove(&mapping->node, &card->mappings);
	spin_unlock_irqrestore(&card->dma_lock, flags);
	WARN(!mapping && !incomplete, "hca: %#llx, %llu bytes, direction %d, is unmapped, but no mapping has these values\n",
	     addr, size, dir);
	kfree(mapping);
}

static void on_map_phys(void *data, struct device *dev, phys_addr_t phys, dma_addr_t addr, size_t size,
			enum dma_data_direction dir, unsigned long attrs)
{
	struct hca_card *card = card_of(dev);

	if (card && addr != DMA_MAPPING_ERROR && size)
		note_map(card, addr, size, dir, false);
}

static void on_unmap_phys(void *data, struct device *dev, dma_addr_t addr, size_t size, enum dma_data_direction dir,
			  unsigned long attrs)
{
	struct hca_card *card = card_of(dev);

	if (card && size)
		note_unmap(card, addr, size, dir);
}

static void on_map_sg(void *data, struct device *dev, struct scatterlist *sgl, int nents, int ents,
		      enum dma_data_direction dir, unsigned long attrs)
{
	struct hca_card *card = card_of(dev);
	struct scatterlist *sg;
	int i;

	if (!card)
		return;
	for_each_sg(sgl, sg, ents, i) {
		if (sg_dma_len(sg))
			note_map(card, sg_dma_address(sg), sg_dma_len(sg), dir, sg_dma_is_bus_address(sg));
	}
}

/* The event comes before the unmapping; nents counts segments before neighbours were merged. */
static void on_unmap_sg(void *data, struct device *dev, struct scatterlist *sgl, int nents,
			enum dma_data_direction dir, unsigned long attrs)
{
	struct hca_card *card = card_of(dev);
	struct scatterlist *sg;
	int i;

	if (!card)
		return;
	for_each_sg(sgl, sg, nents, i) {
		if (!sg_dma_len(sg))
			break;
		note_unmap(card, sg_dma_address(sg), sg_dma_len(sg), dir);
	}
}

static void on_alloc(void *data, struct device *dev, void *virt, dma_addr_t addr, size_t size,
		     enum dma_data_direction dir, gfp_t flags, unsigned long attrs)
{
	struct hca_card *card = card_of(dev);

	if (card && virt)
		note_map(card, addr, size, dir, false);
}

static void on_free(void *data, struct device *dev, void *virt, dma_addr_t addr, size_t size,
		    enum dma_data_direction dir, unsigned long attrs)
{
	struct hca_card *card = card_of(dev);

	if (card && virt)
		note_unmap(card, addr, size, dir);
}

static struct {
	const char *name;
	void *probe;
	struct tracepoint *tp;
} probes[] = {
	{ "dma_map_phys", on_map_phys }, { "dma_unmap_phys", on_unmap_phys },
	{ "dma_map_sg", on_map_sg },	 { "dma_unmap_sg", on_unmap_sg },
	{ "dma_alloc", on_alloc },	 { "dma_free", on_free },
};

static void find_probe(struct tracepoint *tp, void *unused)
{
	int i;

	for (i = 0; i < ARRAY_SIZE(probes); i++)
		if (!strcmp(tp->name, probes[i].name))
			probes[i].tp = tp;
}

void hca_dma_exit(void)
{
	int i;

	for (i = 0; i < ARRAY_SIZE(probes); i++)
		if (probes[i].tp)
			tracepoint_probe_unregister(probes[i].tp, probes[i].probe, NULL);
	tracepoint_synchronize_unregister();
}

int hca_dma_init(void)
{
	int i, err;

	/* The prototypes must match the kernel's calls. */
	check_trace_callback_type_dma_map_phys(on_map_phys);
	check_trace_callback_type_dma_unmap_phys(on_unmap_phys);
	check_trace_callback_type_dma_map_sg(on_map_sg);
	check_trace_callback_type_dma_unmap_sg(on_unmap_sg);
	check_trace_callback_type_dma_alloc(on_alloc);
	check_trace_callback_type_dma_free(on_free);
	if (!check_dma)
		return 0;
	for_each_kernel_tracepoint(find_probe, NULL);
	for (i = 0; i < ARRAY_SIZE(probes); i++) {
		err = probes[i].tp ? tracepoint_probe_register(probes[i].tp, probes[i].probe, NULL) : -ENOENT;
		if (err) {
			pr_err("hca: no tracepoint %s: %d\n", probes[i].name, err);
			probes[i].tp = NULL;
			hca_dma_exit();
			return err;
		}
	}
	return 0;
}

/* The card is being removed: no mapping for it may be left. */
void hca_dma_forget(struct hca_card *card)
{
	struct interval_tree_node *node;
	unsigned int left = 0;

	while ((node = interval_tree_iter_first(&card->mappings, 0, ULONG_MAX))) {
		interval_tree_remove(node, &card->mappings);
		kfree(container_of(node, struct hca_mapping, node));
		left++;
	}
	WARN(left, "hca: %u mappings of %s are left\n", left, pci_name(card->pdev));
}

/* Prints the mappings: address, length, direction (enum dma_data_direction), and bus or not. */
void hca_dma_show(struct hca_card *card, struct seq_file *file)
{
	struct interval_tree_node *node;

	spin_lock_irq(&card->dma_lock);
	for (node = interval_tree_iter_first(&card->mappings, 0, ULONG_MAX); node;
	     node = interval_tree_iter_next(node, 0, ULONG_MAX)) {
		struct hca_mapping *mapping = container_of(node, struct hca_mapping, node);

		seq_printf(file, "%#lx %lu %d %s\n", node->start, node->last - node->start + 1, mapping->dir,
			   mapping->bus ? "bus" : "memory");
	}
	spin_unlock_irq(&card->dma_lock);
}

/* Returns the mapping of an address in this direction, of several the one that ends last. */
static struct hca_mapping *mapping_at(struct hca_card *card, u64 addr, bool to_memory)
{
	enum dma_data_direction wanted = to_memory ? DMA_FROM_DEVICE : DMA_TO_DEVICE;
	struct interval_tree_node *node;
	struct hca_mapping *best = NULL;

	for (node = interval_tree_iter_first(&card->mappings, addr, addr); node;
	     node = interval_tree_iter_next(node, addr, addr)) {
		struct hca_mapping *mapping = container_of(node, struct hca_mapping, node);

		if (mapping->dir != wanted && mapping->dir != DMA_BIDIRECTIONAL)
			continue;
		if (!best || node->last > best->node.last)
			best = mapping;
	}
	return best;
}

/* Makes an access within a page; dma_lock is held. Returns what is wrong with it, or NULL. */
static const char *copy_piece(struct hca_card *card, u64 addr, void *data, u32 len, bool to_memory,
			      struct iommu_domain *domain, u32 *done)
{
	struct hca_mapping *mapping = mapping_at(card, addr, to_memory);
	phys_addr_t phys = addr;
	bool bus = false;
	void *memory;

	if (mapping) {
		len = min_t(u64, len, mapping->node.last - addr + 1);
		bus = mapping->bus;
	} else if (check_dma && !card->dma_incomplete) {
		return mapping_at(card, addr, !to_memory) ? "is not mapped in this direction" : "is not mapped";
	}
	if (domain && !bus) {
		phys = iommu_iova_to_phys(domain, addr);
		if (!phys)
			return "is not known to the IOMMU";
	}
	if (!pfn_valid(PHYS_PFN(phys)))
		return "is neither memory nor lent by a PCI device";
	memory = phys_to_virt(phys);
	if (is_pci_p2pdma_page(pfn_to_page(PHYS_PFN(phys)))) {
		if (to_memory)
			memcpy_toio((void __iomem *)memory, data, len);
		else
			memcpy_fromio(data, (void __iomem *)memory, len);
		card->dma_bus_bytes += len;
	} else if (bus) {
		return "is said to be a bus address, but is not in a BAR that is lent";
	} else if (to_memory) {
		memcpy(memory, data, len);
	} else {
		memcpy(data, memory, len);
	}
	card->dma_bytes += len;
	*done = len;
	return NULL;
}

/* Reads (with `to_memory`: writes) `len` bytes at a DMA address. */
int hca_dma_copy(struct hca_dev *dev, u64 addr, void *data, u32 len, bool to_memory)
{
	struct hca_card *card = dev->card;
	struct iommu_domain *domain = iommu_get_domain_for_dev(&card->pdev->dev);
	const char *wrong = NULL;
	unsigned long flags;
	u32 done;

	if (domain && !(domain->type & __IOMMU_DOMAIN_PAGING))
		domain = NULL;
	if (!card->pdev->is_busmaster)
		wrong = "is accessed while the device is no bus master";
	while (len && !wrong) {
		u32 piece = min_t(u32, len, PAGE_SIZE - offset_in_page(addr));

		spin_lock_irqsave(&card->dma_lock, flags);
		wrong = copy_piece(card, addr, data, piece, to_memory, domain, &done);
		if (wrong)
			card->dma_faults++;
		spin_unlock_irqrestore(&card->dma_lock, flags);
		if (!wrong) {
			addr += done;
			data += done;
			len -= done;
		}
	}
	if (!wrong)
		return 0;
	WARN(1, "hca: %s: DMA fault: %s of %#llx, which %s\n", dev_name(&dev->ib_dev.dev),
	     to_memory ? "write" : "read", addr, wrong);
	return -EFAULT;
}
