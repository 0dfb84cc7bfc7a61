// SPDX-License-Identifier: GPL-2.0
/* What the peers that speak nonsense share. */

#ifndef EVENT_H
#define EVENT_H

#include <poll.h>
#include <stddef.h>
#include <rdma/rdma_cma.h>

/* The next event, or NULL when there is none within so many milliseconds. */
static inline struct rdma_cm_event *next_event(struct rdma_event_channel *channel, int ms)
{
	struct pollfd fd = { channel->fd, POLLIN, 0 };
	struct rdma_cm_event *event;

	return poll(&fd, 1, ms) > 0 && !rdma_get_cm_event(channel, &event) ? event : NULL;
}

#endif
