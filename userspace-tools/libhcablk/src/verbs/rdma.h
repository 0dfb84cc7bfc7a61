/* SPDX-License-Identifier: GPL-2.0 */
/* What bindings are made of: rdma-core's API. */
#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>
