// SPDX-License-Identifier: GPL-2.0
#include <linux/backing-dev.h>
#include <linux/highmem.h>
#include <linux/idr.h>
#include <linux/module.h>
#include <linux/pagemap.h>

#include "block_helpers.h"

int hcablk_c_blk_rq_map_sg(struct request *rq, struct scatterlist *sgl)
{
	return blk_rq_map_sg(rq, sgl);
}

/* Those that cannot wait for others end at once. */
void hcablk_c_blk_mq_end_with(struct request *rq, struct io_comp_batch *batch)
{
	if (!blk_mq_add_to_batch(rq, batch, false, blk_mq_end_request_batch))
		blk_mq_end_request(rq, BLK_STS_OK);
}

/* rq_for_each_segment() is a macro; the first @len bytes of the data are copied. */
void hcablk_c_rq_copy_to(struct request *rq, const void *from, size_t len)
{
	struct req_iterator iter;
	struct bio_vec bv;

	/* Most are in one page, of one bio. */
	if (rq->bio) {
		bv = bio_iter_iovec(rq->bio, rq->bio->bi_iter);
		if (len <= bv.bv_len) {
			bv.bv_len = len;
			memcpy_to_bvec(&bv, from);
			return;
		}
	}
	rq_for_each_segment(bv, rq, iter) {
		if (!len)
			break;
		bv.bv_len = min_t(size_t, bv.bv_len, len);
		memcpy_to_bvec(&bv, from);
		from += bv.bv_len;
		len -= bv.bv_len;
	}
}

void hcablk_c_rq_copy_from(struct request *rq, void *to, size_t len)
{
	struct req_iterator iter;
	struct bio_vec bv;

	rq_for_each_segment(bv, rq, iter) {
		if (!len)
			break;
		bv.bv_len = min_t(size_t, bv.bv_len, len);
		memcpy_from_bvec(to, &bv);
		to += bv.bv_len;
		len -= bv.bv_len;
	}
}

/* blk_mq_alloc_disk() is a macro: it makes the lock class. */
struct gendisk *hcablk_c_alloc_disk(struct blk_mq_tag_set *set, struct queue_limits *lim,
				    void *queuedata)
{
	return blk_mq_alloc_disk(set, lim, queuedata);
}

/* A disk's private_data begins with the text. */
static ssize_t wwid_show(struct device *dev, struct device_attribute *attr, char *buf)
{
	return sysfs_emit(buf, "%s\n", (const char *)dev_to_disk(dev)->private_data);
}
static DEVICE_ATTR_RO(wwid);

static struct attribute *disk_attrs[] = {
	&dev_attr_wwid.attr,
	NULL,
};
ATTRIBUTE_GROUPS(disk);

const struct attribute_group **hcablk_c_disk_groups(void)
{
	return disk_groups;
}

static DEFINE_IDA(disk_numbers);

int hcablk_c_disk_number_alloc(void)
{
	return ida_alloc(&disk_numbers, GFP_KERNEL);
}

void hcablk_c_disk_number_free(unsigned int number)
{
	ida_free(&disk_numbers, number);
}

struct module *hcablk_c_core_module(void)
{
	return THIS_MODULE;
}

void hcablk_c_module_get(struct module *module)
{
	__module_get(module);
}

void hcablk_c_module_put(struct module *module)
{
	module_put(module);
}

bool hcablk_c_bdev_write_cache(struct block_device *bdev)
{
	return bdev_write_cache(bdev);
}

/* A block device that the kernel opens reads nothing ahead before its read-ahead is set. */
void hcablk_c_follow_read_ahead(struct file *file)
{
	file->f_ra.ra_pages = inode_to_bdi(file->f_mapping->host)->ra_pages;
}

bool hcablk_c_stable_writes(struct file *file)
{
	struct inode *inode = file->f_mapping->host;

	return S_ISBLK(inode->i_mode) ? bdev_stable_writes(I_BDEV(inode)) :
					mapping_stable_writes(file->f_mapping);
}

loff_t hcablk_c_file_size(struct file *file)
{
	return i_size_read(file_inode(file));
}

void hcablk_c_kiocb_end_write(struct kiocb *iocb)
{
	kiocb_end_write(iocb);
}

void hcablk_c_configfs_init_subsystem(struct configfs_subsystem *subsys)
{
	mutex_init(&subsys->su_mutex);
}

void hcablk_c_configfs_add_default_group(struct config_group *new_group,
					 struct config_group *group)
{
	configfs_add_default_group(new_group, group);
}
