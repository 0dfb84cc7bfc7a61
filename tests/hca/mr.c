// SPDX-License-Identifier: GPL-2.0
/*
 * Memory regions, and every access by a key.
 *
 * map_mr_sg() writes addresses into the region's descriptors; the device reads
 * them only when it carries out the REG_MR, as HCAs do. A consumer that maps again before
 * then registers the wrong pages.
 */
#include <linux/errno.h>
#include <linux/moduleparam.h>
#include <linux/slab.h>

#include "hca.h"

static int quota_error = ENOMEM;
module_param(quota_error, int, 0644);
MODULE_PARM_DESC(quota_error, "the error of a region beyond max_mr; irdma has EOVERFLOW, bnxt_re EIO");

static struct hca_mr *new_mr(struct ib_pd *pd, u32 max_pages)
{
	struct hca_dev *dev = to_hca(pd->device);
	struct hca_mr *mr = kzalloc(sizeof(*mr), GFP_KERNEL);
	int err;

	if (!mr)
		return ERR_PTR(-ENOMEM);
	mr->pd = pd;
	mr->max_pages = max_pages;
	mr->descs = kvcalloc(max(max_pages, 1u), sizeof(u64), GFP_KERNEL);
	mr->pages = kvcalloc(max(max_pages, 1u), sizeof(u64), GFP_KERNEL);
	err = -ENOMEM;
	if (!mr->descs || !mr->pages)
		goto free;
	mutex_lock(&dev->exec);
	if (dev->mr_count >= dev->attr.max_mr)
		err = -quota_error;
	else
		err = xa_alloc(&dev->mrs, &mr->index, mr, XA_LIMIT(16, 0xffffff), GFP_KERNEL);
	if (!err)
		dev->mr_count++;
	mr->key = mr->index << 8 | dev->next_key++;
	mutex_unlock(&dev->exec);
	if (err)
		goto free;
	mr->ib_mr.lkey = mr->key;
	mr->ib_mr.rkey = mr->key;
	return mr;

free:
	kvfree(mr->descs);
	kvfree(mr->pages);
	kfree(mr);
	return ERR_PTR(err);
}

struct ib_mr *hca_get_dma_mr(struct ib_pd *pd, int access)
{
	struct hca_mr *mr = new_mr(pd, 0);

	if (IS_ERR(mr))
		return ERR_CAST(mr);
	mr->access = access;
	mr->length = U64_MAX;
	mr->state = HCA_MR_DMA;
	return &mr->ib_mr;
}

/* ib_core requires this operation for kernel users. */
struct ib_mr *hca_reg_user_mr(struct ib_pd *pd, u64 start, u64 length, u64 virt_addr, int access,
			      struct ib_dmah *dmah, struct ib_udata *udata)
{
	return ERR_PTR(-EOPNOTSUPP);
}

struct ib_mr *hca_alloc_mr(struct ib_pd *pd, enum ib_mr_type type, u32 max_num_sg)
{
	struct hca_dev *dev = to_hca(pd->device);
	struct hca_mr *mr;

	if (type != IB_MR_TYPE_MEM_REG || !max_num_sg || max_num_sg > dev->attr.max_fast_reg_page_list_len)
		return ERR_PTR(-EINVAL);
	mr = new_mr(pd, max_num_sg);
	return IS_ERR(mr) ? ERR_CAST(mr) : &mr->ib_mr;
}

static int set_page(struct ib_mr *ib_mr, u64 addr)
{
	struct hca_mr *mr = to_hca_mr(ib_mr);

	if (mr->npages == mr->max_pages)
		return -ENOMEM;
	mr->descs[mr->npages++] = addr;
	return 0;
}

int hca_map_mr_sg(struct ib_mr *ib_mr, struct scatterlist *sg, int nents, unsigned int *offset)
{
	to_hca_mr(ib_mr)->npages = 0;
	return ib_sg_to_pages(ib_mr, sg, nents, offset, set_page);
}

int hca_dereg_mr(struct ib_mr *ib_mr, struct ib_udata *udata)
{
	struct hca_mr *mr = to_hca_mr(ib_mr);
	struct hca_dev *dev = to_hca(ib_mr->device);

	mutex_lock(&dev->exec);
	xa_erase(&dev->mrs, mr->index);
	dev->mr_count--;
	mutex_unlock(&dev->exec);
	kvfree(mr->descs);
	kvfree(mr->pages);
	kfree(mr);
	return 0;
}

/* The engine calls the functions below, with dev->exec held. */

/* Returns the region of a key, if its whole key matches and this queue pair may use it. */
static struct hca_mr *find_mr(struct hca_qp *qp, u32 key)
{
	struct hca_mr *mr = xa_load(&qp->dev->mrs, key >> 8);

	if (!mr || mr->key != key || mr->state == HCA_MR_FREE || mr->pd != qp->ib_qp.pd)
		return NULL;
	return mr;
}

/* Carries out a REG_MR. */
int hca_reg_mr(struct hca_qp *qp, struct hca_swqe *wqe)
{
	struct hca_mr *mr = xa_load(&qp->dev->mrs, wqe->key >> 8);
	u64 first = wqe->iova & (wqe->page_size - 1);

	if (!mr || mr != wqe->mr || mr->pd != qp->ib_qp.pd || mr->state != HCA_MR_FREE)
		return -EACCES;
	if (!is_power_of_2(wqe->page_size) || !(qp->dev->attr.page_size_cap & wqe->page_size) ||
	    mr->npages > mr->max_pages || !wqe->mr_length ||
	    wqe->mr_length > (u64)mr->npages * wqe->page_size - first)
		return -EACCES;
	memcpy(mr->pages, mr->descs, mr->npages * sizeof(u64));
	mr->nvalid = mr->npages;
	mr->key = wqe->key;
	mr->access = wqe->access;
	mr->iova = wqe->iova;
	mr->length = wqe->mr_length;
	mr->page_size = wqe->page_size;
	mr->state = HCA_MR_VALID;
	return 0;
}

/* Carries out a LOCAL_INV, or the invalidation of a SEND. */
int hca_invalidate(struct hca_qp *qp, u32 key, bool remote)
{
	struct hca_mr *mr = xa_load(&qp->dev->mrs, key >> 8);

	if (!mr || mr->key != key || mr->pd != qp->ib_qp.pd || mr->state == HCA_MR_DMA)
		return -EACCES;
	/* A peer may invalidate a region that it may access, once. */
	if (remote && (mr->state != HCA_MR_VALID || !(mr->access & (IB_ACCESS_REMOTE_READ | IB_ACCESS_REMOTE_WRITE))))
		return -EACCES;
	mr->state = HCA_MR_FREE;
	return 0;
}

static bool within(const struct hca_mr *mr, u64 addr, u64 len)
{
	return addr >= mr->iova && len <= mr->length && addr - mr->iova <= mr->length - len;
}

static int mr_copy(struct hca_dev *dev, struct hca_mr *mr, u64 addr, void *data, u32 len, bool to_memory)
{
	u64 at;

	if (mr->state == HCA_MR_DMA)
		return hca_dma_copy(dev, addr, data, len, to_memory);
	at = (mr->iova & (mr->page_size - 1)) + (addr - mr->iova);
	while (len) {
		u32 within_page = at & (mr->page_size - 1);
		u32 piece = min(len, mr->page_size - within_page);
		u32 page = at / mr->page_size;
		int err;

		if (page >= mr->nvalid)
			return -EACCES;
		err = hca_dma_copy(dev, mr->pages[page] + within_page, data, piece, to_memory);
		if (err)
			return err;
		at += piece;
		data += piece;
		len -= piece;
	}
	return 0;
}

/* Reads or writes `len` bytes of a work request's segments, starting at `offset`. */
int hca_sge_copy(struct hca_qp *qp, const struct ib_sge *sge, u32 num, u32 offset, void *data, u32 len, bool to_memory)
{
	u32 i;

	for (i = 0; i < num && len; i++, sge++) {
		struct hca_mr *mr;
		u32 piece;
		int err;

		if (offset >= sge->length) {
			offset -= sge->length;
			continue;
		}
		piece = min(len, sge->length - offset);
		if (sge->lkey == qp->dev->ib_dev.local_dma_lkey && sge->lkey) {
			err = hca_dma_copy(qp->dev, sge->addr + offset, data, piece, to_memory);
		} else {
			mr = find_mr(qp, sge->lkey);
			/* The whole segment must be in the region, even if only a part is used. */
			if (!mr || !within(mr, sge->addr, sge->length) ||
			    (to_memory && !(mr->access & IB_ACCESS_LOCAL_WRITE)))
				return -EACCES;
			err = mr_copy(qp->dev, mr, sge->addr + offset, data, piece, to_memory);
		}
		if (err)
			return err;
		offset = 0;
		data += piece;
		len -= piece;
	}
	return len ? -EACCES : 0;
}

/* Checks the peer's right to these bytes; `right` is an IB_ACCESS_REMOTE_*. */
int hca_remote_check(struct hca_qp *qp, u32 rkey, u64 addr, u32 len, int right)
{
	struct hca_mr *mr;

	if (!(qp->attr.qp_access_flags & right))
		return -EACCES;
	if (!len)
		return 0;
	mr = find_mr(qp, rkey);
	return mr && (mr->access & right) && within(mr, addr, len) ? 0 : -EACCES;
}

/* Looks the region up for each packet: it may have been invalidated in between. */
int hca_remote_copy(struct hca_qp *qp, u32 rkey, u64 addr, void *data, u32 len, bool to_memory)
{
	int err = hca_remote_check(qp, rkey, addr, len, to_memory ? IB_ACCESS_REMOTE_WRITE : IB_ACCESS_REMOTE_READ);

	return err || !len ? err : mr_copy(qp->dev, find_mr(qp, rkey), addr, data, len, to_memory);
}
