/* SPDX-License-Identifier: GPL-2.0 */
#ifndef HCABLK_BLOCK_HELPERS_H
#define HCABLK_BLOCK_HELPERS_H

#include <linux/bio.h>
#include <linux/blk-mq.h>
#include <linux/blkdev.h>
#include <linux/configfs.h>

int hcablk_c_blk_rq_map_sg(struct request *rq, struct scatterlist *sgl);

#endif
