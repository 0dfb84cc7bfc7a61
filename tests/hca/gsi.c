// SPDX-License-Identifier: GPL-2.0
/*
 * The general services interface: datagrams of queue pair 1, which establish
 * connections. The first 40 bytes of a receive hold the network's header, as with
 * RoCE v2.
 */
#include <linux/ip.h>
#include <rdma/ib_addr.h>
#include <rdma/ib_cache.h>
#include <rdma/ib_mad.h>

#include "hca.h"

int hca_create_ah(struct ib_ah *ib_ah, struct rdma_ah_init_attr *init, struct ib_udata *udata)
{
	struct hca_ah *ah = to_hca_ah(ib_ah);
	const struct ib_gid_attr *sgid;

	if (init->ah_attr->type != RDMA_AH_ATTR_TYPE_ROCE || !(rdma_ah_get_ah_flags(init->ah_attr) & IB_AH_GRH))
		return -EINVAL;
	sgid = init->ah_attr->grh.sgid_attr;
	if (!sgid || sgid->gid_type != IB_GID_TYPE_ROCE_UDP_ENCAP)
		return -EINVAL;
	ah->attr = *init->ah_attr;
	ah->attr.grh.sgid_attr = NULL;
	ah->sgid = sgid->gid;
	ah->net_type = rdma_gid_attr_network_type(sgid);
	return 0;
}

int hca_destroy_ah(struct ib_ah *ah, u32 flags)
{
	return 0;
}

void hca_ud_send(struct hca_qp *qp, struct hca_swqe *wqe)
{
	struct hca_pkt *pkt;

	if (wqe->length > HCA_MTU) {
		wqe->status = IB_WC_LOC_LEN_ERR;
		return;
	}
	pkt = hca_pkt_alloc(qp, HCA_PKT_UD, wqe->length);
	if (hca_sge_copy(qp, wqe->sge, wqe->num_sge, 0, pkt->data, wqe->length, false)) {
		wqe->status = IB_WC_LOC_PROT_ERR;
		kfree(pkt);
		return;
	}
	pkt->sgid = wqe->sgid;
	pkt->dgid = wqe->ah.grh.dgid;
	ether_addr_copy(pkt->dmac, wqe->ah.roce.dmac);
	pkt->net_type = wqe->net_type;
	pkt->dqpn = wqe->remote_qpn;
	/* A work request's key with the highest bit set means the queue pair's own key. */
	pkt->qkey = wqe->remote_qkey & BIT(31) ? qp->attr.qkey : wqe->remote_qkey;
	pkt->total = wqe->length;
	hca_wire_send(qp->dev, pkt);
}

static void make_header(union rdma_network_hdr *hdr, const struct hca_pkt *pkt)
{
	struct iphdr *ip = (struct iphdr *)&hdr->roce4grh;

	memset(hdr, 0, sizeof(*hdr));
	if (pkt->net_type == RDMA_NETWORK_IPV4) {
		ip->version = 4;
		ip->ihl = 5;
		ip->ttl = 64;
		ip->protocol = IPPROTO_UDP;
		ip->tot_len = cpu_to_be16(20 + 8 + 12 + 8 + pkt->len + 4);
		memcpy(&ip->saddr, pkt->sgid.raw + 12, 4);
		memcpy(&ip->daddr, pkt->dgid.raw + 12, 4);
		ip->check = ip_fast_csum(ip, ip->ihl);
	} else {
		hdr->ibgrh.version_tclass_flow = cpu_to_be32(6U << 28);
		hdr->ibgrh.next_hdr = IPPROTO_UDP;
		hdr->ibgrh.hop_limit = 64;
		hdr->ibgrh.sgid = pkt->sgid;
		hdr->ibgrh.dgid = pkt->dgid;
	}
}

void hca_ud_receive(struct hca_qp *qp, struct hca_pkt *pkt)
{
	struct hca_rwqe *wqe = hca_rq_first(qp);
	union rdma_network_hdr hdr;
	struct ib_wc wc = {};
	int err;

	if ((qp->state != IB_QPS_RTR && qp->state != IB_QPS_RTS) || pkt->qkey != qp->attr.qkey || !wqe ||
	    wqe->length < sizeof(hdr) + pkt->len) {
		qp->dev->count.dropped++;
		return;
	}
	make_header(&hdr, pkt);
	wc.wr_id = wqe->wr_id;
	err = hca_sge_copy(qp, wqe->sge, wqe->num_sge, 0, &hdr, sizeof(hdr), true) ?:
	      hca_sge_copy(qp, wqe->sge, wqe->num_sge, sizeof(hdr), pkt->data, pkt->len, true);
	wc.status = err ? IB_WC_LOC_PROT_ERR : IB_WC_SUCCESS;
	wc.opcode = IB_WC_RECV;
	wc.byte_len = sizeof(hdr) + pkt->len;
	wc.src_qp = pkt->sqpn;
	wc.port_num = 1;
	wc.wc_flags = IB_WC_GRH | IB_WC_WITH_NETWORK_HDR_TYPE;
	wc.network_hdr_type = pkt->net_type;
	qp->rq_head++;
	hca_complete(qp, &wc, qp->rq_head, true, false);
	if (err)
		hca_qp_error(qp);
}
