// SPDX-License-Identifier: GPL-2.0
/* <linux/iommu-dma.h> uses it. */
#include <linux/scatterlist.h>
#include <linux/iommu-dma.h>

#include "helpers.h"

struct ib_pd *hcablk_c_ib_alloc_pd(struct ib_device *dev)
{
	return ib_alloc_pd(dev, 0);
}

void hcablk_c_ib_dealloc_pd(struct ib_pd *pd)
{
	ib_dealloc_pd(pd);
}

struct ib_cq *hcablk_c_ib_create_cq(struct ib_device *dev, ib_comp_handler comp,
				    void (*event)(struct ib_event *, void *),
				    void *context, u32 cqe, int vector)
{
	struct ib_cq_init_attr attr = {
		.cqe = cqe,
		.comp_vector = vector,
	};

	return ib_create_cq(dev, comp, event, context, &attr);
}

void hcablk_c_ib_destroy_cq(struct ib_cq *cq)
{
	ib_destroy_cq(cq);
}

int hcablk_c_ib_dereg_mr(struct ib_mr *mr)
{
	return ib_dereg_mr(mr);
}

u32 hcablk_c_ib_inc_rkey(u32 rkey)
{
	return ib_inc_rkey(rkey);
}

void hcablk_c_ib_update_fast_reg_key(struct ib_mr *mr, u8 key)
{
	ib_update_fast_reg_key(mr, key);
}

bool hcablk_c_ib_is_virtual(struct ib_device *dev)
{
	return ib_uses_virt_dma(dev);
}

int hcablk_c_ib_dma_map_sg(struct ib_device *dev, struct scatterlist *sg, int nents,
			   enum dma_data_direction dir)
{
	return ib_dma_map_sg(dev, sg, nents, dir);
}

void hcablk_c_ib_dma_unmap_sg(struct ib_device *dev, struct scatterlist *sg, int nents,
			      enum dma_data_direction dir)
{
	ib_dma_unmap_sg(dev, sg, nents, dir);
}

/*
 * Maps the first bio_vec of a request's data. The data is never peer memory: no queue of ours has
 * BLK_FEAT_PCI_P2PDMA.
 */
int hcablk_c_ib_dma_map_bvec(struct ib_device *dev, struct request *rq,
			     enum dma_data_direction dir, u64 *addr, unsigned int *len)
{
	struct bio_vec bv = req_bvec(rq);

	*len = bv.bv_len;
	*addr = ib_dma_map_bvec(dev, &bv, dir);
	return ib_dma_mapping_error(dev, *addr);
}

u64 hcablk_c_ib_dma_map_page(struct ib_device *dev, struct page *page, size_t len,
			     enum dma_data_direction dir)
{
	return ib_dma_map_page(dev, page, 0, len, dir);
}

/* "quietly": another device may use the memory, so nothing is copied to it from a bounce buffer. */
void hcablk_c_ib_dma_unmap_page(struct ib_device *dev, u64 addr, size_t len,
				enum dma_data_direction dir, bool quietly)
{
	if (quietly && !ib_uses_virt_dma(dev))
		dma_unmap_page_attrs(dev->dma_device, addr, len, dir,
				     DMA_ATTR_SKIP_CPU_SYNC);
	else
		ib_dma_unmap_page(dev, addr, len, dir);
}

int hcablk_c_ib_dma_mapping_error(struct ib_device *dev, u64 addr)
{
	return ib_dma_mapping_error(dev, addr);
}

/*
 * Returns whether the calls below do anything for this mapping. With CONFIG_DMA_API_DEBUG always
 * true, so that its checks see all calls.
 */
bool hcablk_c_ib_dma_need_sync(struct ib_device *dev, u64 addr)
{
	if (IS_ENABLED(CONFIG_DMA_API_DEBUG))
		return true;
	return !ib_uses_virt_dma(dev) && dma_need_sync(dev->dma_device, addr);
}

/* SIZE_MAX: no limit. Less where mapped data may have to be copied to bounce buffers. */
size_t hcablk_c_ib_dma_max_mapping(struct ib_device *dev)
{
	return ib_uses_virt_dma(dev) ? SIZE_MAX : dma_max_mapping_size(dev->dma_device);
}

/* Whether mapped addresses are those of an IOMMU that the DMA API programs. */
bool hcablk_c_ib_dma_translated(struct ib_device *dev)
{
	return !ib_uses_virt_dma(dev) && use_dma_iommu(dev->dma_device);
}

void hcablk_c_ib_dma_sync_for_cpu(struct ib_device *dev, u64 addr, size_t len,
				  enum dma_data_direction dir)
{
	ib_dma_sync_single_for_cpu(dev, addr, len, dir);
}

void hcablk_c_ib_dma_sync_for_device(struct ib_device *dev, u64 addr, size_t len,
				     enum dma_data_direction dir)
{
	ib_dma_sync_single_for_device(dev, addr, len, dir);
}

bool hcablk_c_is_iwarp(struct ib_device *dev, u32 port)
{
	return rdma_protocol_iwarp(dev, port);
}

u64 hcablk_c_sg_dma(struct scatterlist *sg, unsigned int *len)
{
	*len = sg_dma_len(sg);
	return sg_dma_address(sg);
}

/* Some configurations have a separate field for the length of a mapped entry. */
void hcablk_c_sg_set_dma(struct scatterlist *sg, u64 addr, unsigned int len)
{
	sg->length = len;
	sg_dma_address(sg) = addr;
	sg_dma_len(sg) = len;
}

int hcablk_c_ibdev_node(struct ib_device *device)
{
	return ibdev_to_node(device);
}

/* rdma_create_id() is a macro: it records the calling module's name. */
struct rdma_cm_id *hcablk_c_rdma_create_id(rdma_cm_event_handler handler, void *context)
{
	return rdma_create_id(&init_net, handler, context, RDMA_PS_TCP, IB_QPT_RC);
}

/*
 * The ports that a connection is between, once its route is known; none on iWARP, which knows no
 * GIDs.
 */
void hcablk_c_gids(struct rdma_cm_id *id, u8 *own, u8 *peer)
{
	const struct sa_path_rec *path = id->route.path_rec;

	memset(own, 0, 16);
	memset(peer, 0, 16);
	if (path && id->route.num_pri_alt_paths) {
		memcpy(own, path->sgid.raw, 16);
		memcpy(peer, path->dgid.raw, 16);
	}
}

/* An end's address as an IPv6 one, that of IPv4 as its last four bytes, and its port. */
void hcablk_c_address(struct rdma_cm_id *id, bool peer, u8 *address, u16 *port)
{
	const struct rdma_addr *addr = &id->route.addr;
	const struct sockaddr_storage *end = peer ? &addr->dst_addr : &addr->src_addr;
	const struct sockaddr *of = (const struct sockaddr *)end;

	memset(address, 0, 16);
	*port = 0;
	if (of->sa_family == AF_INET6) {
		memcpy(address, &((const struct sockaddr_in6 *)of)->sin6_addr, 16);
		*port = ntohs(((const struct sockaddr_in6 *)of)->sin6_port);
	} else if (of->sa_family == AF_INET) {
		memcpy(address + 12, &((const struct sockaddr_in *)of)->sin_addr, 4);
		*port = ntohs(((const struct sockaddr_in *)of)->sin_port);
	}
}
