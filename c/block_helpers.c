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

/* A request that the batch does not accept ends at once. */
void hcablk_c_blk_mq_end_with(struct request *rq, struct io_comp_batch *batch)
{
	if (!blk_mq_add_to_batch(rq, batch, false, blk_mq_end_request_batch))
		blk_mq_end_request(rq, BLK_STS_OK);
}

/*
 * blk_mq_requeue_work() dispatches requests with RQF_DONTPREP, which is a macro, in the order of
 * requeueing. The block layer starts a request's timeout at each issue; so the next issue gets the
 * rest of the time, but at least a quarter.
 */
void hcablk_c_requeue(struct request *rq)
{
	long least = rq->q->rq_timeout / 4;
	long left = READ_ONCE(rq->deadline) - jiffies;

	WRITE_ONCE(rq->timeout, max(left, least));
	rq->rq_flags |= RQF_DONTPREP;
	blk_mq_requeue_request(rq, true);
}

/*
 * Gives a request its full timeout from the next time that its timer is set, instead of the time
 * that an earlier issue left.
 */
void hcablk_c_time_anew(struct request *rq)
{
	WRITE_ONCE(rq->timeout, rq->q->rq_timeout);
}

/*
 * set_disk_ro() without its uevent, which is sent under a mutex whose holder waits for memory.
 * assign_bit() is a macro.
 */
void hcablk_c_mark_disk_ro(struct gendisk *disk, bool read_only)
{
	assign_bit(GD_READ_ONLY, &disk->state, read_only);
}

/*
 * As bdev_discard_alignment(), but never divides by a granularity that becomes 0 meanwhile: the
 * caller does not hold the lock of the limits.
 */
static unsigned int discard_alignment(struct block_device *bdev, unsigned int granularity)
{
	u64 start = (u64)get_start_sect(bdev) << SECTOR_SHIFT;
	u32 offset;

	if (!granularity)
		return 0;
	div_u64_rem(start, granularity, &offset);
	return (READ_ONCE(bdev_limits(bdev)->discard_alignment) % granularity +
		granularity - offset) % granularity;
}

/*
 * Limits of a drive that user space has lowered count here, too. Most of these are inlines, and the
 * flags are macros.
 */
void hcablk_c_bdev_limits(struct block_device *bdev, struct hcablk_live_limits *out)
{
	const struct queue_limits *lim = bdev_limits(bdev);
	unsigned int granularity = READ_ONCE(lim->discard_granularity);
	int alignment = bdev_alignment_offset(bdev);

	*out = (struct hcablk_live_limits){
		.physical_block_size = bdev_physical_block_size(bdev),
		/* -1 if the parts of a stacked device disagree. */
		.alignment_offset = max(alignment, 0),
		.io_min = bdev_io_min(bdev),
		.io_opt = bdev_io_opt(bdev),
		.max_discard_sectors = bdev_max_discard_sectors(bdev),
		.discard_granularity = granularity,
		.discard_alignment = discard_alignment(bdev, granularity),
		.max_write_zeroes_sectors = bdev_write_zeroes_sectors(bdev),
		.zeroes_unmap = bdev_write_zeroes_unmap_sectors(bdev) != 0,
		.rotational = bdev_rot(bdev),
		.write_cache = bdev_write_cache(bdev),
		.fua = bdev_fua(bdev),
		.atomic_write_unit_min = bdev_atomic_write_unit_min_bytes(bdev),
		.atomic_write_unit_max = bdev_atomic_write_unit_max_bytes(bdev),
		.atomic_write_boundary = lim->atomic_write_boundary_sectors << SECTOR_SHIFT,
	};
}

/*
 * The flags of features are macros. FUA means nothing without a write cache: blk_validate_limits()
 * then clears it.
 */
void hcablk_c_set_limits(struct queue_limits *lim, const struct hcablk_live_limits *to)
{
	lim->features &= ~(BLK_FEAT_WRITE_CACHE | BLK_FEAT_FUA | BLK_FEAT_ROTATIONAL |
			   BLK_FEAT_ATOMIC_WRITES);
	if (to->write_cache)
		lim->features |= BLK_FEAT_WRITE_CACHE;
	if (to->fua)
		lim->features |= BLK_FEAT_FUA;
	if (to->rotational)
		lim->features |= BLK_FEAT_ROTATIONAL;
	if (to->atomic_write_unit_max)
		lim->features |= BLK_FEAT_ATOMIC_WRITES;
	lim->physical_block_size = to->physical_block_size;
	lim->alignment_offset = to->alignment_offset;
	lim->io_min = to->io_min;
	lim->io_opt = to->io_opt;
	lim->max_hw_discard_sectors = to->max_discard_sectors;
	lim->discard_granularity = to->discard_granularity;
	lim->discard_alignment = to->discard_alignment;
	lim->max_write_zeroes_sectors = to->max_write_zeroes_sectors;
	lim->max_hw_wzeroes_unmap_sectors = to->zeroes_unmap ? to->max_write_zeroes_sectors : 0;
	lim->atomic_write_hw_unit_min = to->atomic_write_unit_min;
	lim->atomic_write_hw_unit_max = to->atomic_write_unit_max;
	lim->atomic_write_hw_max = to->atomic_write_unit_max;
	lim->atomic_write_hw_boundary = to->atomic_write_boundary;
}

/*
 * These are inlines. They need neither a freeze nor a lock: requests that were made within the old
 * limits end as not supported.
 */
void hcablk_c_lower_limits(struct gendisk *disk, const struct hcablk_live_limits *to)
{
	if (!to->max_discard_sectors)
		blk_queue_disable_discard(disk->queue);
	if (!to->max_write_zeroes_sectors)
		blk_queue_disable_write_zeroes(disk->queue);
	/* Otherwise user space could not change any limit until the disk follows these. */
	if (!to->max_write_zeroes_sectors)
		disk->queue->limits.max_hw_wzeroes_unmap_sectors = 0;
}

/*
 * As queue_limits_commit_update_frozen(), but each wait has a time limit.
 * queue_limits_commit_update() unlocks, and raises a read-ahead that user space has lowered: only
 * other preferences of the drive are a reason for that.
 */
int hcablk_c_try_set_limits(struct gendisk *disk, const struct hcablk_live_limits *to,
			    unsigned int ms)
{
	struct request_queue *q = disk->queue;
	struct queue_limits lim;
	unsigned long read_ahead;
	unsigned int memflags;
	int ret = -EAGAIN;

	if (!mutex_trylock(&q->limits_lock))
		return ret;
	memflags = memalloc_noio_save();
	blk_freeze_queue_start(q);
	if (blk_mq_freeze_queue_wait_timeout(q, msecs_to_jiffies(ms)) > 0) {
		bool same = q->limits.io_opt == to->io_opt &&
			    !(q->limits.features & BLK_FEAT_ROTATIONAL) == !to->rotational;

		lim = q->limits;
		hcablk_c_set_limits(&lim, to);
		read_ahead = disk->bdi->ra_pages;
		ret = queue_limits_commit_update(q, &lim);
		if (same)
			disk->bdi->ra_pages = read_ahead;
	} else {
		mutex_unlock(&q->limits_lock);
	}
	blk_mq_unfreeze_queue(q, memflags);
	return ret;
}

/*
 * The time is only set for requests with RQF_IO_STAT; otherwise it is that of an earlier request.
 * The flag is a macro.
 */
u64 hcablk_c_made_ns(struct request *rq)
{
	return rq->rq_flags & RQF_IO_STAT ? rq->start_time_ns : 0;
}

/* rq_for_each_segment() is a macro; the first @len bytes of the data are copied. */
void hcablk_c_rq_copy_to(struct request *rq, const void *from, size_t len)
{
	struct req_iterator iter;
	struct bio_vec bv;

	/* In most requests these bytes are in one page of one bio. */
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

/* A whole page is copied by copy_page(), the kernel's fastest copy: @to is then a page as well. */
void hcablk_c_rq_copy_from(struct request *rq, void *to, size_t len)
{
	struct req_iterator iter;
	struct bio_vec bv;

	if (rq->bio) {
		bv = bio_iter_iovec(rq->bio, rq->bio->bi_iter);
		if (len <= bv.bv_len) {
			bv.bv_len = len;
			if (len == PAGE_SIZE && PAGE_ALIGNED(to)) {
				void *from = bvec_kmap_local(&bv);

				copy_page(to, from);
				kunmap_local(from);
			} else {
				memcpy_from_bvec(to, &bv);
			}
			return;
		}
	}
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

/*
 * This may put the last reference to the module. The call is in tail position, which the compilers
 * turn into a jump: it does not return to code that may be unloaded.
 */
void hcablk_c_free_disk(struct gendisk *disk)
{
	hcablk_rs_free_disk(disk);
	module_put(THIS_MODULE);
}

void hcablk_c_module_get(struct module *module)
{
	__module_get(module);
}

void hcablk_c_module_put(struct module *module)
{
	module_put(module);
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

/* A field of an anonymous union, for which bindgen has a name that changes. */
const struct path *hcablk_c_path_of(const struct file *file)
{
	return &file->f_path;
}

bool hcablk_c_can_writeback(struct file *file)
{
	return mapping_can_writeback(file->f_mapping);
}

/* The drive whose cache a flush of the file empties: the whole disk, even for a partition. */
const void *hcablk_c_drive_of(const struct file *file)
{
	struct inode *inode = file->f_mapping->host;
	struct block_device *bdev = S_ISBLK(inode->i_mode) ? I_BDEV(inode) :
							     inode->i_sb->s_bdev;

	return bdev ? (const void *)bdev->bd_disk : inode->i_sb;
}

/* The openers of a block device; of a file, only those that opened it for writing. */
int hcablk_c_openers(const struct file *file)
{
	struct inode *inode = file->f_mapping->host;

	return S_ISBLK(inode->i_mode) ? atomic_read(&I_BDEV(inode)->bd_openers) :
					atomic_read(&inode->i_writecount);
}

unsigned int hcablk_c_block_bytes(const struct file *file)
{
	return i_blocksize(file->f_mapping->host);
}

/* False on overlayfs, and where another file's pages are used: write-back bypasses f_mapping. */
bool hcablk_c_has_own_pages(const struct file *file)
{
	return !(file->f_path.dentry->d_flags & DCACHE_OP_REAL) &&
	       file->f_mapping == file_inode(file)->i_mapping &&
	       file->f_mapping->host == file_inode(file);
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

/*
 * Persistent reservations: rust/blkdev/reservations.rs carries them out. These are in C since the
 * type of a reservation comes unchecked from user space, and a Rust enum must have a valid value.
 */
static int hcablk_pr_register(struct block_device *bdev, u64 old_key, u64 new_key, u32 flags)
{
	return hcablk_rs_pr_change(bdev->bd_disk, 0, old_key, new_key, 0, flags & PR_FL_IGNORE_KEY);
}

static int hcablk_pr_reserve(struct block_device *bdev, u64 key, enum pr_type type, u32 flags)
{
	if (flags)
		return -EOPNOTSUPP;
	return hcablk_rs_pr_change(bdev->bd_disk, 1, key, 0, type, false);
}

static int hcablk_pr_release(struct block_device *bdev, u64 key, enum pr_type type)
{
	return hcablk_rs_pr_change(bdev->bd_disk, 2, key, 0, type, false);
}

static int hcablk_pr_preempt(struct block_device *bdev, u64 old_key, u64 new_key,
			     enum pr_type type, bool abort)
{
	return hcablk_rs_pr_change(bdev->bd_disk, 3, old_key, new_key, type, abort);
}

static int hcablk_pr_clear(struct block_device *bdev, u64 key)
{
	return hcablk_rs_pr_change(bdev->bd_disk, 4, key, 0, 0, false);
}

/* Starts again when the keys change meanwhile, but only a limited number of times. */
static int hcablk_pr_read_keys(struct block_device *bdev, struct pr_keys *info)
{
	u32 room = info->num_keys, number = 0, generation = 0, seen, i, tries;
	u64 key;
	int ret;

	for (tries = 0; tries < 16; tries++) {
		i = 0;
		do {
			ret = hcablk_rs_pr_read(bdev->bd_disk, false, i, &seen, &number, &key);
			if (ret)
				return ret;
			if (i && seen != generation)
				break;
			generation = seen;
			if (i < room && i < number)
				info->keys[i] = key;
			i++;
		} while (i < number && i < room);
		if (seen == generation) {
			info->generation = generation;
			info->num_keys = number;
			return 0;
		}
	}
	return -EAGAIN;
}

static int hcablk_pr_read_reservation(struct block_device *bdev, struct pr_held_reservation *held)
{
	u32 generation, type;
	u64 key;
	int ret = hcablk_rs_pr_read(bdev->bd_disk, true, 0, &generation, &type, &key);

	if (ret)
		return ret;
	held->key = key;
	held->generation = generation;
	held->type = type;
	return 0;
}

static const struct pr_ops hcablk_pr_ops = {
	.pr_register = hcablk_pr_register,
	.pr_reserve = hcablk_pr_reserve,
	.pr_release = hcablk_pr_release,
	.pr_preempt = hcablk_pr_preempt,
	.pr_clear = hcablk_pr_clear,
	.pr_read_keys = hcablk_pr_read_keys,
	.pr_read_reservation = hcablk_pr_read_reservation,
};

const struct pr_ops *hcablk_c_pr_ops(void)
{
	return &hcablk_pr_ops;
}
