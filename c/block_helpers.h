/* SPDX-License-Identifier: GPL-2.0 */
#ifndef HCABLK_BLOCK_HELPERS_H
#define HCABLK_BLOCK_HELPERS_H

#include <linux/bio.h>
#include <linux/blk-mq.h>
#include <linux/blkdev.h>
#include <linux/configfs.h>
#include <linux/fs.h>
#include <linux/pr.h>

int hcablk_c_blk_rq_map_sg(struct request *rq, struct scatterlist *sgl);
void hcablk_c_blk_mq_end_with(struct request *rq, struct io_comp_batch *batch);
void hcablk_c_requeue(struct request *rq);
/*
 * The fields of a disk's queue_limits that may change while it is in use, with their names and
 * units; the atomic ones are in bytes.
 */
struct hcablk_live_limits {
	u32 physical_block_size;
	u32 alignment_offset;
	u32 io_min;
	u32 io_opt;
	u32 max_discard_sectors;
	u32 discard_granularity;
	u32 discard_alignment;
	u32 max_write_zeroes_sectors;
	u32 atomic_write_unit_min;
	u32 atomic_write_unit_max;
	u32 atomic_write_boundary;
	bool zeroes_unmap;
	bool rotational;
	bool write_cache;
	bool fua;
};

void hcablk_c_bdev_limits(struct block_device *bdev, struct hcablk_live_limits *out);
void hcablk_c_set_limits(struct queue_limits *lim, const struct hcablk_live_limits *to);
void hcablk_c_lower_limits(struct gendisk *disk, const struct hcablk_live_limits *to);
int hcablk_c_try_set_limits(struct gendisk *disk, const struct hcablk_live_limits *to,
			    unsigned int ms);
void hcablk_c_mark_disk_ro(struct gendisk *disk, bool read_only);
void hcablk_c_time_anew(struct request *rq);
u64 hcablk_c_made_ns(struct request *rq);
void hcablk_c_rq_copy_to(struct request *rq, const void *from, size_t len);
void hcablk_c_rq_copy_from(struct request *rq, void *to, size_t len);

struct gendisk *hcablk_c_alloc_disk(struct blk_mq_tag_set *set, struct queue_limits *lim,
				    void *queuedata);
const struct attribute_group **hcablk_c_disk_groups(void);
const struct pr_ops *hcablk_c_pr_ops(void);
void hcablk_rs_free_disk(struct gendisk *disk);
void hcablk_c_free_disk(struct gendisk *disk);
int hcablk_rs_pr_change(struct gendisk *disk, u32 what, u64 key, u64 other, u32 how, bool flag);
int hcablk_rs_pr_read(struct gendisk *disk, bool whole, u32 index, u32 *generation, u32 *number,
		      u64 *key);
int hcablk_c_disk_number_alloc(void);
void hcablk_c_disk_number_free(unsigned int number);
struct module *hcablk_c_core_module(void);
void hcablk_c_module_get(struct module *module);
void hcablk_c_module_put(struct module *module);

void hcablk_c_follow_read_ahead(struct file *file);
bool hcablk_c_stable_writes(struct file *file);
const void *hcablk_c_drive_of(const struct file *file);
unsigned int hcablk_c_block_bytes(const struct file *file);
int hcablk_c_openers(const struct file *file);
bool hcablk_c_has_own_pages(const struct file *file);
loff_t hcablk_c_file_size(struct file *file);
const struct path *hcablk_c_path_of(const struct file *file);
bool hcablk_c_can_writeback(struct file *file);
void hcablk_c_kiocb_end_write(struct kiocb *iocb);

void hcablk_c_configfs_init_subsystem(struct configfs_subsystem *subsys);
void hcablk_c_configfs_add_default_group(struct config_group *new_group,
					 struct config_group *group);

#endif
