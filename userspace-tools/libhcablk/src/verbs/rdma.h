/* SPDX-License-Identifier: GPL-2.0 */
/* bindgen makes bindings from this header: rdma-core's API. */
#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>
