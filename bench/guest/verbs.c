// SPDX-License-Identifier: GPL-2.0
/*
 * hcablk-verbs OPERATION BYTES DEPTH COUNT
 *	prints the nanoseconds of the monotonic clock for one send, rdmawrite or
 *	rdmaread of BYTES, between two queue pairs of this process on the first
 *	RDMA device: the lower bound of the cost of all I/O that consists of it.
 *
 * At depth 1 the program waits for each completion before it posts again. Above
 * that it posts up to BATCH work requests with one call, of which the last is
 * signaled, and keeps DEPTH outstanding. It waits on the completion channel.
 * Posting and waiting are system calls here, unlike in a driver.
 */

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <infiniband/verbs.h>

enum { BATCH = 16, WARM = 64, RECEIVES = 256, PORT = 1 };

struct end {
	struct ibv_qp *qp;
	struct ibv_cq *send, *recv;
};

static struct ibv_context *device;
static struct ibv_pd *pd;
static struct ibv_comp_channel *channel;
static struct ibv_mr *mr;
static struct end ends[2];
static size_t bytes;
static unsigned int gid_index;
static union ibv_gid gid;

static void fail(const char *what)
{
	perror(what);
	exit(1);
}

/* Finds the first GID of RoCE v2 with an IPv4 address. */
static void find_gid(void)
{
	struct ibv_gid_entry entry;

	for (unsigned int i = 0; i < 16; i++) {
		if (ibv_query_gid_ex(device, PORT, i, &entry, 0) || entry.gid_type != IBV_GID_TYPE_ROCE_V2 ||
		    entry.gid.raw[10] != 0xff || entry.gid.raw[11] != 0xff)
			continue;
		gid_index = i;
		gid = entry.gid;
		return;
	}
	fail("no RoCE v2 address");
}

static void make(struct end *end)
{
	struct ibv_qp_init_attr init = {
		.qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = 256, .max_recv_wr = RECEIVES, .max_send_sge = 1, .max_recv_sge = 1 },
	};

	end->send = init.send_cq = ibv_create_cq(device, 512, NULL, channel, 0);
	end->recv = init.recv_cq = ibv_create_cq(device, 512, NULL, NULL, 0);
	end->qp = ibv_create_qp(pd, &init);
	if (!end->send || !end->recv || !end->qp)
		fail("ibv_create_qp");
}

static void join(struct end *end, struct end *other)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = PORT };

	attr.qp_access_flags = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
	if (ibv_modify_qp(end->qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS))
		fail("to INIT");
	attr = (struct ibv_qp_attr){
		.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_4096, .dest_qp_num = other->qp->qp_num,
		.max_dest_rd_atomic = 16, .min_rnr_timer = 12,
		.ah_attr = { .is_global = 1, .port_num = PORT,
			     .grh = { .dgid = gid, .sgid_index = gid_index, .hop_limit = 1 } },
	};
	if (ibv_modify_qp(end->qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
			  IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER))
		fail("to RTR");
	attr = (struct ibv_qp_attr){
		.qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 6, .rnr_retry = 7, .max_rd_atomic = 16,
	};
	if (ibv_modify_qp(end->qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
			  IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC))
		fail("to RTS");
}

static struct ibv_sge half(unsigned int n)
{
	return (struct ibv_sge){ (uintptr_t)mr->addr + n * bytes, bytes, mr->lkey };
}

static void receive(unsigned int n)
{
	struct ibv_sge sge = half(1);
	struct ibv_recv_wr wrs[BATCH], *bad;

	for (unsigned int i = 0; i < n; i++)
		wrs[i] = (struct ibv_recv_wr){ .next = i + 1 < n ? &wrs[i + 1] : NULL, .sg_list = &sge, .num_sge = 1 };
	if (n && ibv_post_recv(ends[1].qp, wrs, &bad))
		fail("ibv_post_recv");
}

static void post(enum ibv_wr_opcode opcode, unsigned int n)
{
	struct ibv_sge sge = half(0);
	struct ibv_send_wr wrs[BATCH], *bad;

	for (unsigned int i = 0; i < n; i++) {
		wrs[i] = (struct ibv_send_wr){
			.next = i + 1 < n ? &wrs[i + 1] : NULL, .sg_list = &sge, .num_sge = 1, .opcode = opcode,
			.send_flags = i + 1 < n ? 0 : IBV_SEND_SIGNALED,
			.wr.rdma = { .remote_addr = (uintptr_t)mr->addr + bytes, .rkey = mr->rkey },
		};
	}
	if (ibv_post_send(ends[0].qp, wrs, &bad))
		fail("ibv_post_send");
}

/* Waits for one more signaled completion. */
static void await(void)
{
	struct ibv_cq *cq;
	struct ibv_wc wc;
	void *context;
	int n;

	while (!(n = ibv_poll_cq(ends[0].send, 1, &wc))) {
		if (ibv_req_notify_cq(ends[0].send, 0))
			fail("ibv_req_notify_cq");
		n = ibv_poll_cq(ends[0].send, 1, &wc);
		if (n)
			break;
		if (ibv_get_cq_event(channel, &cq, &context))
			fail("ibv_get_cq_event");
		ibv_ack_cq_events(cq, 1);
	}
	if (n < 0 || wc.status != IBV_WC_SUCCESS) {
		fprintf(stderr, "completion: %s\n", n < 0 ? "cannot be polled" : ibv_wc_status_str(wc.status));
		exit(1);
	}
}

/* Posts a receive for each one that has completed. */
static void replenish(void)
{
	struct ibv_wc wcs[BATCH];
	int n;

	while ((n = ibv_poll_cq(ends[1].recv, BATCH, wcs)) > 0)
		receive(n);
}

static void carry_out(enum ibv_wr_opcode opcode, unsigned int depth, unsigned int count)
{
	unsigned int batch = depth > BATCH ? BATCH : depth, room = depth / batch, flying = 0;

	while (count || flying) {
		if (count && flying < room) {
			post(opcode, batch);
			count -= count < batch ? count : batch;
			flying++;
		} else {
			await();
			flying--;
			replenish();
		}
	}
}

int main(int argc, char **argv)
{
	static const struct { const char *name; enum ibv_wr_opcode opcode; } operations[] = {
		{ "send", IBV_WR_SEND }, { "rdmawrite", IBV_WR_RDMA_WRITE }, { "rdmaread", IBV_WR_RDMA_READ },
	};
	enum { N = sizeof(operations) / sizeof(*operations) };
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct timespec from, to;
	unsigned int depth, count, n = 0;

	while (argc == 5 && n < N && strcmp(argv[1], operations[n].name))
		n++;
	if (argc != 5 || n == N)
		return 2;
	bytes = strtoul(argv[2], NULL, 10);
	depth = strtoul(argv[3], NULL, 10);
	count = strtoul(argv[4], NULL, 10);
	if (!list || !list[0] || !(device = ibv_open_device(list[0])))
		fail("no RDMA device");
	find_gid();
	pd = ibv_alloc_pd(device);
	channel = ibv_create_comp_channel(device);
	mr = ibv_reg_mr(pd, aligned_alloc(4096, (2 * bytes + 4095) & ~4095ul), 2 * bytes,
			IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ);
	if (!pd || !channel || !mr)
		fail("ibv_reg_mr");
	memset(mr->addr, 1, 2 * bytes);
	make(&ends[0]);
	make(&ends[1]);
	join(&ends[0], &ends[1]);
	join(&ends[1], &ends[0]);
	for (unsigned int i = 0; i < RECEIVES / BATCH; i++)
		receive(BATCH);
	carry_out(operations[n].opcode, depth, WARM);
	clock_gettime(CLOCK_MONOTONIC, &from);
	carry_out(operations[n].opcode, depth, count);
	clock_gettime(CLOCK_MONOTONIC, &to);
	printf("%.1f\n", ((to.tv_sec - from.tv_sec) * 1e9 + (to.tv_nsec - from.tv_nsec)) / count);
	return 0;
}
