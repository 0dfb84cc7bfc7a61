// SPDX-License-Identifier: GPL-2.0
/* Shared by the peers that send nonsense. */

#ifndef EVENT_H
#define EVENT_H

#include <poll.h>
#include <stddef.h>
#include <rdma/rdma_cma.h>

/* Waits `ms` milliseconds for the next event; returns NULL if none comes. */
static inline struct rdma_cm_event *next_event(struct rdma_event_channel *channel, int ms)
{
	struct pollfd fd = { channel->fd, POLLIN, 0 };
	struct rdma_cm_event *event;

	return poll(&fd, 1, ms) > 0 && !rdma_get_cm_event(channel, &event) ? event : NULL;
}

#endif
