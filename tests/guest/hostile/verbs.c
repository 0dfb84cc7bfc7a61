// SPDX-License-Identifier: GPL-2.0
/* Connections and memory, for both sides. */

#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include "hostile.h"

static struct ibv_pd *pd;
static unsigned char *arena;
/* Memory for received data, for sent data, and without a grant. */
struct ibv_mr *to[SLOTS], *from, *secret, *wide;

unsigned char *slot(unsigned int n)
{
	return arena + GUARD + n * (size_t)(SLOT + GUARD);
}

static void make_memory(struct ibv_context *device)
{
	size_t size = (SLOTS + 2) * (size_t)(SLOT + GUARD) + GUARD;

	if (pd)
		return;
	arena = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	pd = ibv_alloc_pd(device);
	if (arena == MAP_FAILED || !pd)
		failed("memory: %s", strerror(errno));
	for (size_t i = 0; i < size / 8; i++)
		((uint64_t *)arena)[i] = SECRET;
	for (unsigned int i = 0; i < SLOT / 8; i++)
		((uint64_t *)slot(SLOTS))[i] = HOSTILE;
	for (unsigned int i = 0; i < SLOTS; i++)
		to[i] = ibv_reg_mr(pd, slot(i), SLOT, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	from = ibv_reg_mr(pd, slot(SLOTS), SLOT, IBV_ACCESS_REMOTE_READ);
	secret = ibv_reg_mr(pd, slot(SLOTS + 1), SLOT, IBV_ACCESS_LOCAL_WRITE);
	wide = ibv_reg_mr(pd, arena, size, IBV_ACCESS_LOCAL_WRITE);
	if (!to[SLOTS - 1] || !from || !secret || !wide)
		failed("memory regions: %s", strerror(errno));
}

/* Fails if memory between grants was written. */
void check_guards(void)
{
	for (unsigned int n = 0; n <= SLOTS + 2; n++)
		for (unsigned int i = 0; i < GUARD / 8; i++)
			if (((uint64_t *)(slot(n) - GUARD))[i] != SECRET)
				failed("memory that was not granted was written");
	for (unsigned int i = 0; i < SLOT / 8; i++)
		if (((uint64_t *)slot(SLOTS + 1))[i] != SECRET || ((uint64_t *)slot(SLOTS))[i] != HOSTILE)
			failed("memory that was not granted for it was written");
}

void post_receive(struct connection *c, unsigned int n)
{
	struct ibv_sge sge = { (uintptr_t)c->receive[n], RECEIVE, c->mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = n, .sg_list = &sge, .num_sge = 1 }, *bad;

	ibv_post_recv(c->id->qp, &wr, &bad);
}

/* Creates the queue pair of a new connection; returns NULL if the requesting peer has left. */
struct connection *prepare(struct rdma_cm_id *id)
{
	struct connection *c = calloc(1, sizeof(*c));
	struct ibv_qp_init_attr attr = {
		.cap = { .max_send_wr = SENDS, .max_recv_wr = RECEIVES, .max_send_sge = 1, .max_recv_sge = 1 },
		.qp_type = IBV_QPT_RC,
	};

	make_memory(id->verbs);
	c->id = id;
	id->context = c;
	c->cq = ibv_create_cq(id->verbs, SENDS + RECEIVES, NULL, NULL, 0);
	c->mr = ibv_reg_mr(pd, c, sizeof(*c), IBV_ACCESS_LOCAL_WRITE);
	attr.send_cq = c->cq;
	attr.recv_cq = c->cq;
	if (!c->cq || !c->mr)
		failed("a queue pair: %s", strerror(errno));
	if (rdma_create_qp(id, pd, &attr)) {
		if (errno != EINVAL)
			failed("a queue pair: %s", strerror(errno));
		destroy(c);
		return NULL;
	}
	for (unsigned int n = 0; n < RECEIVES; n++)
		post_receive(c, n);
	return c;
}

/* Registers memory that the peer may write to, from this address on. */
struct ibv_mr *open_memory(void *at, size_t n, uint64_t address)
{
	struct ibv_mr *mr = ibv_reg_mr_iova(pd, at, n, address, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);

	if (!mr)
		failed("a memory region: %s", strerror(errno));
	return mr;
}

/* Destroys a connection; only the kernel's own disconnect reaches the peer. */
void destroy(struct connection *c)
{
	if (c->admin)
		destroy(c->admin);
	if (c->id->qp)
		rdma_destroy_qp(c->id);
	rdma_destroy_id(c->id);
	if (c->channel)
		rdma_destroy_event_channel(c->channel);
	if (c->cq)
		ibv_destroy_cq(c->cq);
	if (c->mr)
		ibv_dereg_mr(c->mr);
	free(c);
}

/* Posts a SEND, or the operation of `wr`; a bit of wr_id distinguishes it from a receive. */
void post(struct connection *c, struct ibv_send_wr *wr, struct ibv_sge *sge)
{
	struct ibv_send_wr *bad;

	wr->sg_list = sge;
	wr->num_sge = sge->length ? 1 : 0;
	wr->send_flags = IBV_SEND_SIGNALED;
	/* Without a solicited event a target may be slow to notice. An RDMA READ or WRITE needs none. */
	if (wr->opcode == IBV_WR_SEND || wr->opcode == IBV_WR_SEND_WITH_INV || wr->opcode == IBV_WR_SEND_WITH_IMM ||
	    wr->opcode == IBV_WR_RDMA_WRITE_WITH_IMM)
		wr->send_flags |= IBV_SEND_SOLICITED;
	wr->wr_id |= 1ull << 63;
	last_opcode = wr->opcode;
	if (ibv_post_send(c->id->qp, wr, &bad))
		c->broken = true;
}

void post_message(struct connection *c, struct ibv_send_wr *wr, const unsigned char *bytes, size_t n)
{
	unsigned char *at = c->send[c->sends++ % SENDS];
	struct ibv_sge sge = { (uintptr_t)at, n, c->mr->lkey };

	if (n > KEPT)
		n = KEPT;
	memcpy(at, bytes, n);
	memcpy(last_bytes, bytes, n);
	last_length = n;
	post(c, wr, &sge);
}
