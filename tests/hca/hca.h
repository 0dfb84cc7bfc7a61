/* SPDX-License-Identifier: GPL-2.0 */
/*
 * An RDMA device for tests: declarations that the files of this module share.
 * README.md describes the device and its threads.
 */
#ifndef HCABLK_HCA_H
#define HCABLK_HCA_H

#include <linux/etherdevice.h>
#include <linux/interval_tree.h>
#include <linux/irq_work.h>
#include <linux/ktime.h>
#include <linux/mutex.h>
#include <linux/netdevice.h>
#include <linux/pci.h>
#include <linux/smp.h>
#include <linux/spinlock.h>
#include <linux/xarray.h>
#include <rdma/ib_verbs.h>

#define HCA_MTU		4096	/* the largest payload of a packet */
#define HCA_MAX_SGE	32	/* the upper limit of max_send_sge and max_recv_sge */
#define HCA_MAX_INLINE	256
#define HCA_GIDS	32
#define HCA_RX_LIMIT	256	/* packets that may wait for a device, without answers */
#define HCA_ACK_EVERY	16	/* the responder acknowledges a request after this number of packets */
#define HCA_DMA_LKEY	0x200	/* ib_device.local_dma_lkey: not the key of a region */
#define HCA_PSN_MASK	0xffffff

/* A PCI function that the module is bound to, its port, and its mappings. */
struct hca_card {
	struct list_head entry;
	struct pci_dev *pdev;
	struct net_device *port;
	unsigned int number;
	struct hca_dev *dev;		/* protected by hca_cards_lock; NULL: no link was added */
	spinlock_t dma_lock;		/* protects the tree, and is held over an access */
	struct rb_root_cached mappings;
	u64 dma_bytes, dma_bus_bytes;
	u32 dma_faults;
	bool dma_incomplete;		/* a mapping could not be recorded: no access is checked */
};

/* The settings of tests, in debugfs; see knobs.c. */
struct hca_knobs {
	u32 send_delay_us, recv_delay_us, jitter_us;
	u32 moderation_us;
	u32 fail_wr, fail_status, fail_post, lose, corrupt;
	bool no_flush, stall;
	u32 hold_destroy, hold_after;
};

struct hca_counters {
	u64 sends, writes, reads, regs, invs, recvs;
	u64 packets, dropped, resent, rnr_naks, naks, events, flushed;
};

struct hca_dev {
	struct ib_device ib_dev;
	struct hca_card *card;
	struct ib_device_attr attr;
	struct list_head wire_entry;	/* protected by hca_wire_lock */
	union ib_gid gids[HCA_GIDS];	/* the same */

	struct task_struct *engine;
	unsigned long kicked;
	struct mutex exec;		/* held by the engine, and by commands whose effect it must see as a whole */
	struct xarray qps;		/* by number; protected by exec */
	struct list_head cqs;		/* the same */
	u32 next_qpn;
	struct hca_qp *gsi;		/* the same */
	ktime_t next_timer;		/* used by the engine only */

	spinlock_t ready_lock;
	struct list_head ready;		/* queue pairs with work for the engine */
	spinlock_t rx_lock;
	struct list_head rx;		/* packets that arrived over the wire */
	u32 rx_count;

	spinlock_t mr_lock;
	struct xarray mrs;		/* by the upper 24 bits of their keys; protected by exec */
	u32 mr_count;
	u8 next_key;

	bool fatal;
	int own_drain;
	struct hca_knobs knobs;
	struct hca_counters count;
	atomic_t held;			/* the threads that knobs.hold_destroy holds */
	struct dentry *debugfs;
};

struct hca_pd {
	struct ib_pd ib_pd;
};

struct hca_ah {
	struct ib_ah ib_ah;
	struct rdma_ah_attr attr;
	union ib_gid sgid;
	u8 net_type;
};

enum hca_mr_state { HCA_MR_FREE, HCA_MR_VALID, HCA_MR_DMA };

struct hca_mr {
	struct ib_mr ib_mr;
	struct ib_pd *pd;
	enum hca_mr_state state;
	u32 index;
	u32 key;			/* the region's key while it is valid */
	int access;
	u64 iova, length;
	unsigned int page_size;
	u32 max_pages;
	u32 npages;			/* the number of addresses from map_mr_sg() */
	u64 *descs;			/* these addresses: the device reads them when it carries out the REG_MR */
	u32 nvalid;
	u64 *pages;			/* the addresses that the device has read */
};

struct hca_cqe {
	struct list_head entry;
	struct ib_wc wc;
	struct hca_qp *qp;		/* NULL: the queue pair was destroyed */
	ktime_t due;
	u32 until;			/* the work queue's slots before this one are free when it is polled */
	bool recv;
	bool solicited;
};

struct hca_cq {
	struct ib_cq ib_cq;
	struct list_head dev_entry;
	spinlock_t lock;
	struct hca_cqe *entries;
	struct list_head free, delayed, ready;
	struct list_head late;		/* found only by one more poll; see hca_complete() */
	u32 count;
	u8 armed;			/* IB_CQ_NEXT_COMP, IB_CQ_SOLICITED or 0 */
	bool overrun;
	ktime_t raise_at;		/* a moderated interrupt; 0: none */
	struct irq_work irq;
	call_single_data_t csd;
	unsigned long irq_pending;
	atomic_t irq_refs;
};

enum hca_wqe_state { HCA_WQE_NEW, HCA_WQE_SENT, HCA_WQE_DONE };

/* A work request in a send queue. */
struct hca_swqe {
	u64 wr_id;
	enum ib_wr_opcode opcode;
	int flags;
	enum hca_wqe_state state;
	enum ib_wc_status status;
	u32 num_sge;
	struct ib_sge sge[HCA_MAX_SGE];
	u8 inline_data[HCA_MAX_INLINE];
	u32 length;
	u32 offset;			/* bytes that were sent or have arrived */
	u32 msn;
	u32 attempt;
	bool numbered;			/* msn is set */
	u64 raddr;
	u32 rkey;
	__be32 imm;
	/* REG_MR: the settings at the time of posting */
	struct hca_mr *mr;
	u32 key;
	int access;
	u64 iova, mr_length;
	unsigned int page_size;
	/* UD */
	struct rdma_ah_attr ah;
	union ib_gid sgid;
	u8 net_type;
	u32 remote_qpn, remote_qkey;
};

struct hca_rwqe {
	u64 wr_id;
	u32 num_sge;
	struct ib_sge sge[HCA_MAX_SGE];
	u32 length;
};

/* An answer that a responder has queued: of a READ, or of a request behind one. */
struct hca_resp {
	struct list_head entry;
	struct hca_pkt *answer;		/* the packet to be sent; NULL: a READ */
	bool fatal;			/* after it the queue pair is in error */
	u32 msn, attempt, offset, length;
	u64 raddr;
	u32 rkey;
};

struct hca_qp {
	struct ib_qp ib_qp;
	struct hca_dev *dev;
	struct list_head ready_entry;	/* protected by dev->ready_lock */
	spinlock_t lock;		/* protects the fields that posting and the engine share */
	enum ib_qp_state state;
	bool dying;
	bool draining;			/* work requests posted now are the device's own */
	struct ib_cqe *late;		/* of the work request whose completion is late */
	struct ib_qp_attr attr;
	struct ib_qp_cap cap;
	bool sig_all;
	union ib_gid sgid, dgid;
	u8 dmac[ETH_ALEN];

	struct hca_swqe *sq;
	u32 sq_tail, sq_next, sq_head, sq_free;
	struct hca_rwqe *rq;
	u32 rq_tail, rq_head, rq_free;

	/* The requester's fields, protected by dev->exec. */
	u32 sq_msn;
	u32 reads_out;
	u32 retries, rnr_retries;
	ktime_t ack_by, rnr_until;
	/* The responder's fields, protected by dev->exec. */
	u32 rq_msn;
	u32 rx_offset;
	bool rx_wqe;			/* the message uses a posted receive */
	bool established;
	struct list_head resp;
	bool ack_due;
	bool rx_closed;			/* an error is about to be answered */

	ktime_t last_due[2];
	struct irq_work event_work;
	unsigned long events;
	atomic_t event_refs;
};

enum hca_pkt_kind { HCA_PKT_REQUEST, HCA_PKT_ACK, HCA_PKT_PROGRESS, HCA_PKT_NAK, HCA_PKT_RNR, HCA_PKT_READ, HCA_PKT_UD };

struct hca_pkt {
	struct list_head entry;
	enum hca_pkt_kind kind;
	union ib_gid sgid, dgid;
	u8 dmac[ETH_ALEN];
	u8 net_type;
	u32 dqpn, sqpn;
	u32 msn, attempt;
	enum ib_wr_opcode opcode;
	bool solicited, last;
	u32 offset, len, total;
	u64 raddr;
	u32 rkey;
	u32 qkey;
	__be32 imm;
	u32 reads;			/* the requester's READs in flight, with this one */
	enum ib_wc_status status;
	u8 rnr_timer;
	u8 data[];
};

#define to_hca(dev)	container_of(dev, struct hca_dev, ib_dev)
#define to_hca_cq(cq)	container_of(cq, struct hca_cq, ib_cq)
#define to_hca_qp(qp)	container_of(qp, struct hca_qp, ib_qp)
#define to_hca_mr(mr)	container_of(mr, struct hca_mr, ib_mr)
#define to_hca_ah(ah)	container_of(ah, struct hca_ah, ib_ah)

static inline struct hca_swqe *hca_swqe(struct hca_qp *qp, u32 n)
{
	return &qp->sq[n % qp->cap.max_send_wr];
}

static inline struct hca_rwqe *hca_rwqe(struct hca_qp *qp, u32 n)
{
	return &qp->rq[n % qp->cap.max_recv_wr];
}

/* Returns a - b of numbers of 24 bits. */
static inline int hca_msn_diff(u32 a, u32 b)
{
	return (int)((a - b) << 8) >> 8;
}

/* main.c */
extern struct pci_driver hca_pci_driver;
void hca_init_attr(struct hca_dev *dev);

/* dma.c */
int hca_dma_init(void);
void hca_dma_exit(void);
void hca_dma_forget(struct hca_card *card);
void hca_dma_show(struct hca_card *card, struct seq_file *file);
int hca_dma_copy(struct hca_dev *dev, u64 addr, void *data, u32 len, bool to_memory);

/* port.c */
struct net_device *hca_port_create(struct hca_card *card);
void hca_port_destroy(struct net_device *port);

/* mr.c */
struct ib_mr *hca_get_dma_mr(struct ib_pd *pd, int access);
struct ib_mr *hca_reg_user_mr(struct ib_pd *pd, u64 start, u64 length, u64 virt_addr, int access,
			      struct ib_dmah *dmah, struct ib_udata *udata);
struct ib_mr *hca_alloc_mr(struct ib_pd *pd, enum ib_mr_type type, u32 max_num_sg);
int hca_map_mr_sg(struct ib_mr *mr, struct scatterlist *sg, int nents, unsigned int *offset);
int hca_dereg_mr(struct ib_mr *mr, struct ib_udata *udata);
int hca_reg_mr(struct hca_qp *qp, struct hca_swqe *wqe);
int hca_invalidate(struct hca_qp *qp, u32 key, bool remote);
int hca_sge_copy(struct hca_qp *qp, const struct ib_sge *sge, u32 num, u32 offset, void *data, u32 len, bool to_memory);
int hca_remote_check(struct hca_qp *qp, u32 rkey, u64 addr, u32 len, int right);
int hca_remote_copy(struct hca_qp *qp, u32 rkey, u64 addr, void *data, u32 len, bool to_memory);

/* cq.c */
int hca_create_cq(struct ib_cq *cq, const struct ib_cq_init_attr *attr, struct uverbs_attr_bundle *attrs);
int hca_destroy_cq(struct ib_cq *cq, struct ib_udata *udata);
int hca_poll_cq(struct ib_cq *cq, int num, struct ib_wc *wc);
int hca_req_notify_cq(struct ib_cq *cq, enum ib_cq_notify_flags flags);
void hca_complete(struct hca_qp *qp, struct ib_wc *wc, u32 until, bool recv, bool solicited);
bool hca_cq_announce(struct hca_cq *cq, struct hca_cqe *cqe);
bool hca_cq_has(struct hca_cq *cq, struct hca_qp *qp, bool recv);
void hca_cq_forget(struct hca_cq *cq, struct hca_qp *qp);
void hca_cq_timers(struct hca_dev *dev, ktime_t now);

/* qp.c */
int hca_create_qp(struct ib_qp *qp, struct ib_qp_init_attr *init, struct ib_udata *udata);
int hca_modify_qp(struct ib_qp *qp, struct ib_qp_attr *attr, int mask, struct ib_udata *udata);
int hca_query_qp(struct ib_qp *qp, struct ib_qp_attr *attr, int mask, struct ib_qp_init_attr *init);
int hca_destroy_qp(struct ib_qp *qp, struct ib_udata *udata);
void hca_qp_error(struct hca_qp *qp);
void hca_qp_event(struct hca_qp *qp, enum ib_event_type type);
void hca_drain_sq(struct ib_qp *qp);
void hca_drain_rq(struct ib_qp *qp);

/* post.c */
int hca_post_send(struct ib_qp *qp, const struct ib_send_wr *wr, const struct ib_send_wr **bad);
int hca_post_recv(struct ib_qp *qp, const struct ib_recv_wr *wr, const struct ib_recv_wr **bad);

/* engine.c */
int hca_engine_start(struct hca_dev *dev, int cpu);
void hca_engine_stop(struct hca_dev *dev);
void hca_kick(struct hca_dev *dev);
void hca_qp_kick(struct hca_qp *qp);
void hca_qp_again(struct hca_qp *qp);
void hca_timer(struct hca_dev *dev, ktime_t when);
struct hca_pkt *hca_pkt_alloc(struct hca_qp *qp, enum hca_pkt_kind kind, u32 len);
bool hca_wire_has_room(struct hca_dev *from, const union ib_gid *dgid);
bool hca_wire_is_busy(const union ib_gid *dgid);
void hca_wire_send(struct hca_dev *from, struct hca_pkt *pkt);
void hca_wire_set_gid(struct hca_dev *dev, unsigned int n, const union ib_gid *gid);

/* requester.c */
void hca_requester_run(struct hca_qp *qp, ktime_t now);
void hca_requester_answer(struct hca_qp *qp, struct hca_pkt *pkt);
void hca_flush(struct hca_qp *qp);

/* responder.c */
struct hca_rwqe *hca_rq_first(struct hca_qp *qp);
void hca_responder_request(struct hca_qp *qp, struct hca_pkt *pkt);
void hca_responder_run(struct hca_qp *qp);
void hca_responder_reset(struct hca_qp *qp);

/* gsi.c */
int hca_create_ah(struct ib_ah *ah, struct rdma_ah_init_attr *init, struct ib_udata *udata);
int hca_destroy_ah(struct ib_ah *ah, u32 flags);
void hca_ud_send(struct hca_qp *qp, struct hca_swqe *wqe);
void hca_ud_receive(struct hca_qp *qp, struct hca_pkt *pkt);

/* knobs.c */
void hca_knobs_init(void);
void hca_knobs_exit(void);
void hca_knobs_add(struct hca_dev *dev);
void hca_knobs_remove(struct hca_dev *dev);

#endif
