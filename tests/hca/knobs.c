// SPDX-License-Identifier: GPL-2.0
/*
 * The files in /sys/kernel/debug/hcablk_hca/DEVICE with which tests control and
 * observe a device: README.md has the list.
 */
#include <linux/debugfs.h>
#include <linux/seq_file.h>

#include "hca.h"

static struct dentry *top;

static int stall_get(void *data, u64 *value)
{
	*value = ((struct hca_dev *)data)->knobs.stall;
	return 0;
}

/* Stops the whole device, and continues it later. */
static int stall_set(void *data, u64 value)
{
	struct hca_dev *dev = data;

	WRITE_ONCE(dev->knobs.stall, !!value);
	/* Wait for a round of the engine that began before. */
	mutex_lock(&dev->exec);
	mutex_unlock(&dev->exec);
	hca_kick(dev);
	return 0;
}
DEFINE_DEBUGFS_ATTRIBUTE(stall_ops, stall_get, stall_set, "%llu\n");

static int no_flush_get(void *data, u64 *value)
{
	*value = ((struct hca_dev *)data)->knobs.no_flush;
	return 0;
}

/* When the device flushes again it must check all its queue pairs. */
static int no_flush_set(void *data, u64 value)
{
	struct hca_dev *dev = data;
	struct hca_qp *qp;
	unsigned long n;

	mutex_lock(&dev->exec);
	WRITE_ONCE(dev->knobs.no_flush, !!value);
	xa_for_each(&dev->qps, n, qp)
		hca_qp_kick(qp);
	mutex_unlock(&dev->exec);
	return 0;
}
DEFINE_DEBUGFS_ATTRIBUTE(no_flush_ops, no_flush_get, no_flush_set, "%llu\n");

static int port_get(void *data, u64 *value)
{
	*value = netif_carrier_ok(((struct hca_dev *)data)->card->port);
	return 0;
}

/* Pulls or plugs the cable, which the core reports as IB_EVENT_PORT_ERR or IB_EVENT_PORT_ACTIVE. */
static int port_set(void *data, u64 value)
{
	struct net_device *port = ((struct hca_dev *)data)->card->port;

	if (value)
		netif_carrier_on(port);
	else
		netif_carrier_off(port);
	return 0;
}
DEFINE_DEBUGFS_ATTRIBUTE(port_ops, port_get, port_set, "%llu\n");

static int fatal_get(void *data, u64 *value)
{
	*value = ((struct hca_dev *)data)->fatal;
	return 0;
}

/* Fails the device, for good: it only flushes posted work requests. */
static int fatal_set(void *data, u64 value)
{
	struct hca_dev *dev = data;
	struct ib_event event = { .device = &dev->ib_dev, .event = IB_EVENT_DEVICE_FATAL };
	struct hca_qp *qp;
	unsigned long n;

	if (!value || dev->fatal)
		return -EINVAL;
	mutex_lock(&dev->exec);
	WRITE_ONCE(dev->fatal, true);
	xa_for_each(&dev->qps, n, qp)
		if (qp->state != IB_QPS_RESET)
			hca_qp_error(qp);
	mutex_unlock(&dev->exec);
	ib_dispatch_event(&event);
	return 0;
}
DEFINE_DEBUGFS_ATTRIBUTE(fatal_ops, fatal_get, fatal_set, "%llu\n");

/* Makes the device read eight bytes at a DMA address: tests its faults. */
static int read_at_set(void *data, u64 value)
{
	struct hca_dev *dev = data;
	u64 bytes;
	int err;

	mutex_lock(&dev->exec);
	err = hca_dma_copy(dev, value, &bytes, sizeof(bytes), false);
	mutex_unlock(&dev->exec);
	return err;
}
DEFINE_DEBUGFS_ATTRIBUTE(read_at_ops, NULL, read_at_set, "%llu\n");

static int mappings_show(struct seq_file *file, void *unused)
{
	hca_dma_show(((struct hca_dev *)file->private)->card, file);
	return 0;
}
DEFINE_SHOW_ATTRIBUTE(mappings);

void hca_knobs_add(struct hca_dev *dev)
{
	struct hca_knobs *knobs = &dev->knobs;
	struct hca_counters *count = &dev->count;
	struct dentry *dir = debugfs_create_dir(dev_name(&dev->ib_dev.dev), top);
	struct dentry *counters = debugfs_create_dir("counters", dir);

	dev->debugfs = dir;
	debugfs_create_u32("send_delay_us", 0644, dir, &knobs->send_delay_us);
	debugfs_create_u32("recv_delay_us", 0644, dir, &knobs->recv_delay_us);
	debugfs_create_u32("jitter_us", 0644, dir, &knobs->jitter_us);
	debugfs_create_u32("moderation_us", 0644, dir, &knobs->moderation_us);
	debugfs_create_u32("fail_wr", 0644, dir, &knobs->fail_wr);
	debugfs_create_u32("lose", 0644, dir, &knobs->lose);
	debugfs_create_u32("corrupt", 0644, dir, &knobs->corrupt);
	debugfs_create_u32("fail_status", 0644, dir, &knobs->fail_status);
	debugfs_create_u32("fail_post", 0644, dir, &knobs->fail_post);
	debugfs_create_u32("hold_destroy", 0644, dir, &knobs->hold_destroy);
	debugfs_create_u32("hold_after", 0644, dir, &knobs->hold_after);
	debugfs_create_file_unsafe("stall", 0644, dir, dev, &stall_ops);
	debugfs_create_file_unsafe("no_flush", 0644, dir, dev, &no_flush_ops);
	debugfs_create_file_unsafe("port", 0644, dir, dev, &port_ops);
	debugfs_create_file_unsafe("fatal", 0644, dir, dev, &fatal_ops);

	debugfs_create_file_unsafe("read_at", 0200, dir, dev, &read_at_ops);
	debugfs_create_file("mappings", 0444, dir, dev, &mappings_fops);

	debugfs_create_u64("sends", 0444, counters, &count->sends);
	debugfs_create_u64("writes", 0444, counters, &count->writes);
	debugfs_create_u64("reads", 0444, counters, &count->reads);
	debugfs_create_u64("regs", 0444, counters, &count->regs);
	debugfs_create_u64("invs", 0444, counters, &count->invs);
	debugfs_create_u64("recvs", 0444, counters, &count->recvs);
	debugfs_create_u64("packets", 0444, counters, &count->packets);
	debugfs_create_u64("dropped", 0444, counters, &count->dropped);
	debugfs_create_u64("resent", 0444, counters, &count->resent);
	debugfs_create_u64("rnr_naks", 0444, counters, &count->rnr_naks);
	debugfs_create_u64("naks", 0444, counters, &count->naks);
	debugfs_create_u64("events", 0444, counters, &count->events);
	debugfs_create_u64("flushed", 0444, counters, &count->flushed);
	debugfs_create_atomic_t("held", 0444, counters, &dev->held);
	debugfs_create_u64("dma_bytes", 0444, counters, &dev->card->dma_bytes);
	debugfs_create_u64("dma_bus_bytes", 0444, counters, &dev->card->dma_bus_bytes);
	debugfs_create_u32("dma_faults", 0444, counters, &dev->card->dma_faults);
}

void hca_knobs_remove(struct hca_dev *dev)
{
	debugfs_remove_recursive(dev->debugfs);
}

void hca_knobs_init(void)
{
	top = debugfs_create_dir("hcablk_hca", NULL);
}

void hca_knobs_exit(void)
{
	debugfs_remove_recursive(top);
}
