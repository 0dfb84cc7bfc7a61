/* SPDX-License-Identifier: GPL-2.0 */
#ifndef HCABLK_BLOCK_HELPERS_H
#define HCABLK_BLOCK_HELPERS_H

#include <linux/bio.h>
#include <linux/blk-mq.h>
#include <linux/blkdev.h>
#include <linux/configfs.h>
#include <linux/fs.h>

int hcablk_c_blk_rq_map_sg(struct request *rq, struct scatterlist *sgl);
void hcablk_c_blk_mq_end_with(struct request *rq, struct io_comp_batch *batch);
void hcablk_c_rq_copy_to(struct request *rq, const void *from, size_t len);
void hcablk_c_rq_copy_from(struct request *rq, void *to, size_t len);

struct gendisk *hcablk_c_alloc_disk(struct blk_mq_tag_set *set, struct queue_limits *lim,
				    void *queuedata);
const struct attribute_group **hcablk_c_disk_groups(void);
int hcablk_c_disk_number_alloc(void);
void hcablk_c_disk_number_free(unsigned int number);
struct module *hcablk_c_core_module(void);
void hcablk_c_module_get(struct module *module);
void hcablk_c_module_put(struct module *module);

bool hcablk_c_bdev_write_cache(struct block_device *bdev);
void hcablk_c_follow_read_ahead(struct file *file);
bool hcablk_c_stable_writes(struct file *file);
loff_t hcablk_c_file_size(struct file *file);
void hcablk_c_kiocb_end_write(struct kiocb *iocb);

void hcablk_c_configfs_init_subsystem(struct configfs_subsystem *subsys);
void hcablk_c_configfs_add_default_group(struct config_group *new_group,
					 struct config_group *group);

#endif
