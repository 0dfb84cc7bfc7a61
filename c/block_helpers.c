// SPDX-License-Identifier: GPL-2.0
#include "block_helpers.h"

int hcablk_c_blk_rq_map_sg(struct request *rq, struct scatterlist *sgl)
{
	return blk_rq_map_sg(rq, sgl);
}
