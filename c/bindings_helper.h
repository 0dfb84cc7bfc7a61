/* SPDX-License-Identifier: GPL-2.0 */
/* What bindgen reads: the headers kernel::bindings lacks, and constants it cannot see. */
#include <linux/blk-mq.h>
#include <linux/configfs.h>
#include <linux/falloc.h>
#include <linux/irq_poll.h>
#include <linux/suspend.h>
#include <rdma/ib_cm.h>
#include <rdma/ib_verbs.h>
#include <rdma/rdma_cm.h>

#include "helpers.h"
#include "trace_initiator.h"
#include "trace_target.h"

/* Casts with __force are invisible to bindgen: name the values here, as rust/bindings does. */
const blk_features_t RUST_CONST_HELPER_BLK_FEAT_WRITE_CACHE = BLK_FEAT_WRITE_CACHE;
const blk_features_t RUST_CONST_HELPER_BLK_FEAT_FUA = BLK_FEAT_FUA;
const blk_features_t RUST_CONST_HELPER_BLK_FEAT_ZONED = BLK_FEAT_ZONED;
const blk_flags_t RUST_CONST_HELPER_BLK_FLAG_WRITE_CACHE_DISABLED = BLK_FLAG_WRITE_CACHE_DISABLED;
const blk_mode_t RUST_CONST_HELPER_BLK_OPEN_READ = BLK_OPEN_READ;
const blk_mode_t RUST_CONST_HELPER_BLK_OPEN_WRITE = BLK_OPEN_WRITE;
const blk_mode_t RUST_CONST_HELPER_BLK_OPEN_EXCL = BLK_OPEN_EXCL;
const blk_opf_t RUST_CONST_HELPER_REQ_ATOMIC = REQ_ATOMIC;
const blk_opf_t RUST_CONST_HELPER_REQ_FAILFAST_TRANSPORT = REQ_FAILFAST_TRANSPORT;
const blk_opf_t RUST_CONST_HELPER_REQ_RAHEAD = REQ_RAHEAD;
const blk_opf_t RUST_CONST_HELPER_REQ_FUA = REQ_FUA;
const blk_opf_t RUST_CONST_HELPER_REQ_PREFLUSH = REQ_PREFLUSH;
const blk_opf_t RUST_CONST_HELPER_REQ_SYNC = REQ_SYNC;
const blk_opf_t RUST_CONST_HELPER_REQ_IDLE = REQ_IDLE;
const blk_features_t RUST_CONST_HELPER_BLK_FEAT_STABLE_WRITES = BLK_FEAT_STABLE_WRITES;
const blk_opf_t RUST_CONST_HELPER_REQ_OP_MASK = REQ_OP_MASK;
const blk_status_t RUST_CONST_HELPER_BLK_STS_NOTSUPP = BLK_STS_NOTSUPP;
const blk_status_t RUST_CONST_HELPER_BLK_STS_TIMEOUT = BLK_STS_TIMEOUT;
const blk_status_t RUST_CONST_HELPER_BLK_STS_NOSPC = BLK_STS_NOSPC;
const blk_status_t RUST_CONST_HELPER_BLK_STS_TRANSPORT = BLK_STS_TRANSPORT;
const blk_status_t RUST_CONST_HELPER_BLK_STS_TARGET = BLK_STS_TARGET;
const blk_status_t RUST_CONST_HELPER_BLK_STS_MEDIUM = BLK_STS_MEDIUM;
const blk_status_t RUST_CONST_HELPER_BLK_STS_PROTECTION = BLK_STS_PROTECTION;
const blk_status_t RUST_CONST_HELPER_BLK_STS_RESOURCE = BLK_STS_RESOURCE;
const blk_status_t RUST_CONST_HELPER_BLK_STS_IOERR = BLK_STS_IOERR;
const blk_status_t RUST_CONST_HELPER_BLK_STS_DEV_RESOURCE = BLK_STS_DEV_RESOURCE;
const blk_status_t RUST_CONST_HELPER_BLK_STS_OFFLINE = BLK_STS_OFFLINE;
const blk_status_t RUST_CONST_HELPER_BLK_STS_INVAL = BLK_STS_INVAL;
const blk_status_t RUST_CONST_HELPER_BLK_STS_RESV_CONFLICT = BLK_STS_RESV_CONFLICT;
const int RUST_CONST_HELPER_FALLOC_FL_KEEP_SIZE = FALLOC_FL_KEEP_SIZE;
const int RUST_CONST_HELPER_FALLOC_FL_PUNCH_HOLE = FALLOC_FL_PUNCH_HOLE;
const int RUST_CONST_HELPER_FALLOC_FL_ZERO_RANGE = FALLOC_FL_ZERO_RANGE;
const fmode_t RUST_CONST_HELPER_FMODE_CAN_ODIRECT = FMODE_CAN_ODIRECT;
const fmode_t RUST_CONST_HELPER_FMODE_NOWAIT = FMODE_NOWAIT;
const int RUST_CONST_HELPER_IOCB_DSYNC = IOCB_DSYNC;
const int RUST_CONST_HELPER_IOCB_NOWAIT = IOCB_NOWAIT;
const gfp_t RUST_CONST_HELPER___GFP_COMP = __GFP_COMP;
const gfp_t RUST_CONST_HELPER___GFP_RETRY_MAYFAIL = __GFP_RETRY_MAYFAIL;
const blk_opf_t RUST_CONST_HELPER_REQ_NOMERGE = REQ_NOMERGE;
const blk_opf_t RUST_CONST_HELPER_REQ_NOUNMAP = REQ_NOUNMAP;
