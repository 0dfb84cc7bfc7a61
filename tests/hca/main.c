// SPDX-License-Identifier: GPL-2.0
/*
 * An RDMA device for tests: the module, its PCI functions, and the RDMA core's
 * operations on a device as a whole. `rdma link add NAME type hca netdev PORT`
 * creates the device of the card with that port. Parameters set its limits, and
 * are read when a link is added.
 */
#include <linux/dma-mapping.h>
#include <linux/module.h>
#include <linux/wait.h>
#include <net/addrconf.h>
#include <rdma/ib_addr.h>
#include <rdma/ib_cache.h>
#include <rdma/ib_mad.h>
#include <rdma/rdma_netlink.h>

#include "hca.h"

#define LIMIT(name, value)							\
	static unsigned int name = value;					\
	module_param(name, uint, 0644)

LIMIT(max_send_sge, 16);
LIMIT(max_recv_sge, 16);
LIMIT(max_sge_rd, 16);
LIMIT(max_fast_reg_page_list_len, 512);
LIMIT(max_mr, 16384);
LIMIT(max_qp_wr, 16384);
LIMIT(max_cqe, 65535);
LIMIT(max_qp_rd_atom, 16);

static unsigned long long cap_clear;
module_param(cap_clear, ullong, 0644);
MODULE_PARM_DESC(cap_clear, "device capability flags that a new device lacks");
static bool dma_lkey = true;
module_param(dma_lkey, bool, 0644);
MODULE_PARM_DESC(dma_lkey, "whether a new device has its own local DMA key");
static int own_drain;
module_param(own_drain, int, 0644);
MODULE_PARM_DESC(own_drain, "whether a new device drains its queues itself; 2: without posting a work request, 3: with a late event for it");
static unsigned int vectors;
module_param(vectors, uint, 0644);
MODULE_PARM_DESC(vectors, "completion vectors of a new device; 0: one for each processor");
static int engine_cpu[4] = { -1, -1, -1, -1 };
module_param_array(engine_cpu, int, NULL, 0644);
MODULE_PARM_DESC(engine_cpu, "the processors to which the cards' engines are bound; -1: not bound");

static LIST_HEAD(cards);
static DEFINE_MUTEX(hca_cards_lock);
static DECLARE_WAIT_QUEUE_HEAD(hca_gone);

void hca_init_attr(struct hca_dev *dev)
{
	struct ib_device_attr *attr = &dev->attr;

	attr->fw_ver = 1;
	addrconf_addr_eui48((u8 *)&attr->sys_image_guid, dev->card->port->dev_addr);
	attr->max_mr_size = 1ULL << 40;
	attr->page_size_cap = 0xfffff000;
	attr->vendor_id = dev->card->pdev->vendor;
	attr->max_qp = 1024;
	attr->max_qp_wr = max_qp_wr;
	attr->device_cap_flags = (IB_DEVICE_MEM_MGT_EXTENSIONS | IB_DEVICE_PORT_ACTIVE_EVENT | IB_DEVICE_SYS_IMAGE_GUID |
				  IB_DEVICE_RC_RNR_NAK_GEN) & ~cap_clear;
	attr->kernel_cap_flags = IBK_ALLOW_USER_UNREG | (dma_lkey ? IBK_LOCAL_DMA_LKEY : 0);
	attr->max_send_sge = min(max_send_sge, HCA_MAX_SGE);
	attr->max_recv_sge = min(max_recv_sge, HCA_MAX_SGE);
	attr->max_sge_rd = min(max_sge_rd, HCA_MAX_SGE);
	attr->max_cq = 1024;
	attr->max_cqe = max_cqe;
	attr->max_mr = max_mr;
	attr->max_pd = 1024;
	attr->max_qp_rd_atom = max_qp_rd_atom;
	attr->max_qp_init_rd_atom = max_qp_rd_atom;
	attr->max_res_rd_atom = max_qp_rd_atom * attr->max_qp;
	attr->max_ah = 1024;
	attr->max_fast_reg_page_list_len = max_fast_reg_page_list_len;
	attr->max_pkeys = 1;
	attr->local_ca_ack_delay = 15;
}

static int query_device(struct ib_device *ib_dev, struct ib_device_attr *attr, struct ib_udata *udata)
{
	*attr = to_hca(ib_dev)->attr;
	return 0;
}

static int query_port(struct ib_device *ib_dev, u32 number, struct ib_port_attr *attr)
{
	struct net_device *port = to_hca(ib_dev)->card->port;

	attr->state = ib_get_curr_port_state(port);
	attr->phys_state = attr->state == IB_PORT_ACTIVE ? IB_PORT_PHYS_STATE_LINK_UP : IB_PORT_PHYS_STATE_DISABLED;
	attr->max_mtu = IB_MTU_4096;
	attr->active_mtu = iboe_get_mtu(port->mtu);
	attr->gid_tbl_len = HCA_GIDS;
	attr->ip_gids = 1;
	attr->port_cap_flags = IB_PORT_CM_SUP;
	attr->max_msg_sz = 1U << 30;
	attr->pkey_tbl_len = 1;
	attr->max_vl_num = 1;
	attr->active_width = IB_WIDTH_4X;
	attr->active_speed = IB_SPEED_EDR;
	return 0;
}

static int port_immutable(struct ib_device *ib_dev, u32 port, struct ib_port_immutable *immutable)
{
	immutable->core_cap_flags = RDMA_CORE_PORT_IBA_ROCE_UDP_ENCAP;
	immutable->pkey_tbl_len = 1;
	immutable->gid_tbl_len = HCA_GIDS;
	immutable->max_mad_size = IB_MGMT_MAD_SIZE;
	return 0;
}

static enum rdma_link_layer link_layer(struct ib_device *dev, u32 port)
{
	return IB_LINK_LAYER_ETHERNET;
}

static int query_pkey(struct ib_device *dev, u32 port, u16 index, u16 *pkey)
{
	if (index)
		return -EINVAL;
	*pkey = IB_DEFAULT_PKEY_FULL;
	return 0;
}

static int add_gid(const struct ib_gid_attr *attr, void **context)
{
	if (attr->index >= HCA_GIDS)
		return -EINVAL;
	hca_wire_set_gid(to_hca(attr->device), attr->index, &attr->gid);
	return 0;
}

static int del_gid(const struct ib_gid_attr *attr, void **context)
{
	hca_wire_set_gid(to_hca(attr->device), attr->index, NULL);
	return 0;
}

static int alloc_pd(struct ib_pd *pd, struct ib_udata *udata)
{
	return 0;
}

static int dealloc_pd(struct ib_pd *pd, struct ib_udata *udata)
{
	return 0;
}

/* The last step of unregistering: the device has no users any more. */
static void dealloc_driver(struct ib_device *ib_dev)
{
	struct hca_dev *dev = to_hca(ib_dev);

	hca_knobs_remove(dev);
	hca_engine_stop(dev);
	WARN_ON(!xa_empty(&dev->qps) || !xa_empty(&dev->mrs) || !list_empty(&dev->cqs));
	xa_destroy(&dev->qps);
	xa_destroy(&dev->mrs);
	mutex_lock(&hca_cards_lock);
	dev->card->dev = NULL;
	mutex_unlock(&hca_cards_lock);
	wake_up_all(&hca_gone);
}

static const struct ib_device_ops ops = {
	.owner = THIS_MODULE,
	/* Kernel users only: there is no alloc_ucontext. */
	.driver_id = RDMA_DRIVER_UNKNOWN,
	.add_gid = add_gid,
	.alloc_mr = hca_alloc_mr,
	.alloc_pd = alloc_pd,
	.create_ah = hca_create_ah,
	.create_cq = hca_create_cq,
	.create_qp = hca_create_qp,
	.dealloc_driver = dealloc_driver,
	.dealloc_pd = dealloc_pd,
	.del_gid = del_gid,
	.dereg_mr = hca_dereg_mr,
	.destroy_ah = hca_destroy_ah,
	.destroy_cq = hca_destroy_cq,
	.destroy_qp = hca_destroy_qp,
	.get_dma_mr = hca_get_dma_mr,
	.get_link_layer = link_layer,
	.get_port_immutable = port_immutable,
	.map_mr_sg = hca_map_mr_sg,
	.modify_qp = hca_modify_qp,
	.poll_cq = hca_poll_cq,
	.post_recv = hca_post_recv,
	.post_send = hca_post_send,
	.query_device = query_device,
	.query_pkey = query_pkey,
	.query_port = query_port,
	.query_qp = hca_query_qp,
	.reg_user_mr = hca_reg_user_mr,
	.req_notify_cq = hca_req_notify_cq,

	INIT_RDMA_OBJ_SIZE(ib_ah, hca_ah, ib_ah),
	INIT_RDMA_OBJ_SIZE(ib_cq, hca_cq, ib_cq),
	INIT_RDMA_OBJ_SIZE(ib_pd, hca_pd, ib_pd),
	INIT_RDMA_OBJ_SIZE(ib_qp, hca_qp, ib_qp),
};

static const struct ib_device_ops drain_ops = {
	.drain_rq = hca_drain_rq,
	.drain_sq = hca_drain_sq,
};

static struct rdma_link_ops link_ops;

static struct hca_dev *new_dev(struct hca_card *card)
{
	struct hca_dev *dev = ib_alloc_device(hca_dev, ib_dev);
	struct ib_device *ib_dev;

	if (!dev)
		return NULL;
	dev->card = card;
	mutex_init(&dev->exec);
	xa_init_flags(&dev->qps, XA_FLAGS_ALLOC);
	xa_init_flags(&dev->mrs, XA_FLAGS_ALLOC);
	INIT_LIST_HEAD(&dev->cqs);
	INIT_LIST_HEAD(&dev->ready);
	INIT_LIST_HEAD(&dev->rx);
	spin_lock_init(&dev->ready_lock);
	spin_lock_init(&dev->rx_lock);
	dev->next_qpn = 16;
	dev->own_drain = own_drain;
	dev->knobs.fail_status = IB_WC_LOC_QP_OP_ERR;
	hca_init_attr(dev);

	ib_dev = &dev->ib_dev;
	ib_dev->node_type = RDMA_NODE_IB_CA;
	ib_dev->phys_port_cnt = 1;
	ib_dev->num_comp_vectors = vectors ? min(vectors, num_online_cpus()) : num_online_cpus();
	ib_dev->local_dma_lkey = dma_lkey ? HCA_DMA_LKEY : 0;
	ib_dev->dev.parent = &card->pdev->dev;
	ib_dev->node_guid = dev->attr.sys_image_guid;
	ib_dev->link_ops = &link_ops;
	strscpy(ib_dev->node_desc, "hcablk test HCA", sizeof(ib_dev->node_desc));
	ib_set_device_ops(ib_dev, &ops);
	if (own_drain)
		ib_set_device_ops(ib_dev, &drain_ops);
	return dev;
}

/* hca_cards_lock is held. */
static int add_dev(struct hca_card *card, const char *name)
{
	struct hca_dev *dev;
	int err;

	if (card->dev)
		return -EEXIST;
	dev = new_dev(card);
	if (!dev)
		return -ENOMEM;
	err = ib_device_set_netdev(&dev->ib_dev, card->port, 1);
	if (err)
		goto free;
	err = hca_engine_start(dev, card->number < ARRAY_SIZE(engine_cpu) ? engine_cpu[card->number] : -1);
	if (err)
		goto free;
	card->dev = dev;
	err = ib_register_device(&dev->ib_dev, name, &card->pdev->dev);
	if (err)
		goto stop;
	hca_knobs_add(dev);
	return 0;

stop:
	card->dev = NULL;
	hca_engine_stop(dev);
free:
	/* dealloc_driver() would stop the engine once more. */
	dev->ib_dev.ops.dealloc_driver = NULL;
	ib_dealloc_device(&dev->ib_dev);
	return err;
}

static int newlink(const char *name, struct net_device *port)
{
	struct hca_card *card;
	int err = -ENODEV;

	mutex_lock(&hca_cards_lock);
	list_for_each_entry(card, &cards, entry)
		if (card->port == port)
			err = add_dev(card, name);
	mutex_unlock(&hca_cards_lock);
	return err;
}

static struct rdma_link_ops link_ops = {
	.type = "hca",
	.newlink = newlink,
};

static int probe(struct pci_dev *pdev, const struct pci_device_id *id)
{
	struct hca_card *card = devm_kzalloc(&pdev->dev, sizeof(*card), GFP_KERNEL);
	struct hca_card *other;
	int err;

	if (!card)
		return -ENOMEM;
	card->pdev = pdev;
	card->mappings = RB_ROOT_CACHED;
	spin_lock_init(&card->dma_lock);
	err = pcim_enable_device(pdev);
	if (err)
		return err;
	err = dma_set_mask_and_coherent(&pdev->dev, DMA_BIT_MASK(64));
	if (err)
		return err;
	dma_set_max_seg_size(&pdev->dev, UINT_MAX);
	pci_set_master(pdev);
	pci_set_drvdata(pdev, card);
	mutex_lock(&hca_cards_lock);
	list_for_each_entry(other, &cards, entry)
		card->number = max(card->number, other->number + 1);
	card->port = hca_port_create(card);
	err = PTR_ERR_OR_ZERO(card->port);
	if (!err)
		list_add_tail(&card->entry, &cards);
	mutex_unlock(&hca_cards_lock);
	return err;
}

static void remove(struct pci_dev *pdev)
{
	struct hca_card *card = pci_get_drvdata(pdev);
	struct ib_device *ib_dev = NULL;

	mutex_lock(&hca_cards_lock);
	list_del(&card->entry);
	if (card->dev && ib_device_try_get(&card->dev->ib_dev))
		ib_dev = &card->dev->ib_dev;
	mutex_unlock(&hca_cards_lock);
	if (ib_dev)
		ib_unregister_device_and_put(ib_dev);
	/* Another thread may be removing it already. */
	wait_event(hca_gone, !READ_ONCE(card->dev));
	hca_port_destroy(card->port);
	hca_dma_forget(card);
}

/* QEMU's "edu": a function with bus mastering and a BAR, both unused by QEMU's own part. */
static const struct pci_device_id ids[] = { { PCI_DEVICE(0x1234, 0x11e8) }, {} };
MODULE_DEVICE_TABLE(pci, ids);

struct pci_driver hca_pci_driver = {
	.name = "hcablk_hca",
	.id_table = ids,
	.probe = probe,
	.remove = remove,
};

static int __init hca_init(void)
{
	int err = hca_dma_init();

	if (err)
		return err;
	hca_knobs_init();
	err = pci_register_driver(&hca_pci_driver);
	if (err) {
		hca_knobs_exit();
		hca_dma_exit();
		return err;
	}
	rdma_link_register(&link_ops);
	return 0;
}

static void __exit hca_exit(void)
{
	rdma_link_unregister(&link_ops);
	pci_unregister_driver(&hca_pci_driver);
	hca_knobs_exit();
	hca_dma_exit();
}

module_init(hca_init);
module_exit(hca_exit);
MODULE_DESCRIPTION("An RDMA device for tests");
MODULE_LICENSE("GPL");
MODULE_ALIAS_RDMA_LINK("hca");
