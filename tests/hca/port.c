// SPDX-License-Identifier: GPL-2.0
/*
 * The Ethernet port of a card: it has addresses, which become the device's GIDs,
 * and a carrier. Frames of the network stack are dropped: RDMA does not use that
 * stack, and the test scripts enter the neighbours.
 */
#include <linux/etherdevice.h>

#include "hca.h"

static netdev_tx_t port_xmit(struct sk_buff *skb, struct net_device *port)
{
	dev_kfree_skb(skb);
	return NETDEV_TX_OK;
}

static const struct net_device_ops port_ops = {
	.ndo_start_xmit = port_xmit,
	.ndo_validate_addr = eth_validate_addr,
	.ndo_set_mac_address = eth_mac_addr,
};

struct net_device *hca_port_create(struct hca_card *card)
{
	struct net_device *port = alloc_netdev(0, "hcaport%d", NET_NAME_ENUM, ether_setup);
	u8 address[ETH_ALEN] = { 0x02, 0x00, 0x00, 0x77, 0xca, card->number };
	int err;

	if (!port)
		return ERR_PTR(-ENOMEM);
	SET_NETDEV_DEV(port, &card->pdev->dev);
	port->netdev_ops = &port_ops;
	port->max_mtu = 9000;
	port->mtu = 9000;
	eth_hw_addr_set(port, address);
	err = register_netdev(port);
	if (err) {
		free_netdev(port);
		return ERR_PTR(err);
	}
	return port;
}

void hca_port_destroy(struct net_device *port)
{
	unregister_netdev(port);
	free_netdev(port);
}
