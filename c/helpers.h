/* SPDX-License-Identifier: GPL-2.0 */
/*
 * C code that Rust cannot call directly: static inlines, macros and variadic functions, one plain
 * function each. No logic belongs here.
 */
#ifndef HCABLK_HELPERS_H
#define HCABLK_HELPERS_H

#include <linux/completion.h>
#include <linux/irq_poll.h>
#include <linux/irq_work.h>
#include <linux/pci.h>
#include <linux/pci-p2pdma.h>
#include <linux/scatterlist.h>
#include <linux/spinlock.h>
#include <linux/timer.h>
#include <linux/workqueue.h>
#include <rdma/ib_verbs.h>
#include <rdma/rdma_cm.h>

#include "block_helpers.h"

/* rdma_helpers.c */
struct ib_pd *hcablk_c_ib_alloc_pd(struct ib_device *dev);
void hcablk_c_ib_dealloc_pd(struct ib_pd *pd);
struct ib_cq *hcablk_c_ib_create_cq(struct ib_device *dev, ib_comp_handler comp,
				    void (*event)(struct ib_event *, void *),
				    void *context, u32 cqe, int vector);
void hcablk_c_ib_destroy_cq(struct ib_cq *cq);
int hcablk_c_ib_dereg_mr(struct ib_mr *mr);
u32 hcablk_c_ib_inc_rkey(u32 rkey);
void hcablk_c_ib_update_fast_reg_key(struct ib_mr *mr, u8 key);
bool hcablk_c_ib_is_virtual(struct ib_device *dev);
int hcablk_c_ib_dma_map_sg(struct ib_device *dev, struct scatterlist *sg, int nents,
			   enum dma_data_direction dir);
void hcablk_c_ib_dma_unmap_sg(struct ib_device *dev, struct scatterlist *sg, int nents,
			      enum dma_data_direction dir);
int hcablk_c_ib_dma_map_bvec(struct ib_device *dev, struct request *rq,
			     enum dma_data_direction dir, u64 *addr, unsigned int *len);
u64 hcablk_c_ib_dma_map_page(struct ib_device *dev, struct page *page, size_t len,
			     enum dma_data_direction dir);
void hcablk_c_ib_dma_unmap_page(struct ib_device *dev, u64 addr, size_t len,
				enum dma_data_direction dir, bool quietly);
int hcablk_c_ib_dma_mapping_error(struct ib_device *dev, u64 addr);
bool hcablk_c_ib_dma_need_sync(struct ib_device *dev, u64 addr);
size_t hcablk_c_ib_dma_max_mapping(struct ib_device *dev);
bool hcablk_c_ib_dma_translated(struct ib_device *dev);
void hcablk_c_ib_dma_sync_for_cpu(struct ib_device *dev, u64 addr, size_t len,
				  enum dma_data_direction dir);
void hcablk_c_ib_dma_sync_for_device(struct ib_device *dev, u64 addr, size_t len,
				     enum dma_data_direction dir);
bool hcablk_c_is_iwarp(struct ib_device *dev, u32 port);
u64 hcablk_c_sg_dma(struct scatterlist *sg, unsigned int *len);
void hcablk_c_sg_set_dma(struct scatterlist *sg, u64 addr, unsigned int len);
int hcablk_c_ibdev_node(struct ib_device *device);
void hcablk_c_gids(struct rdma_cm_id *id, u8 *own, u8 *peer);
void hcablk_c_address(struct rdma_cm_id *id, bool peer, u8 *address, u16 *port);
struct rdma_cm_id *hcablk_c_rdma_create_id(rdma_cm_event_handler handler, void *context);

/* faults.c */
#ifdef CONFIG_FAULT_INJECTION_DEBUG_FS
void hcablk_c_faults_create(void);
void hcablk_c_faults_remove(void);
bool hcablk_c_fail_post(void);
bool hcablk_c_fail_map(void);
#endif

/* kernel_helpers.c */
unsigned int hcablk_c_num_online_cpus(void);
unsigned int hcablk_c_numa_distance(int node);
unsigned long hcablk_c_this_thread(void);
u64 hcablk_c_get_random_u64(void);
void *hcablk_c_page_address(struct page *page);
unsigned long hcablk_c_spin_lock_irqsave(spinlock_t *lock);
void hcablk_c_spin_unlock_irqrestore(spinlock_t *lock, unsigned long flags);
bool hcablk_c_spin_trylock_irqsave(spinlock_t *lock, unsigned long *flags);
void hcablk_c_init_delayed_work(struct delayed_work *work, work_func_t func);
/* Uses the system's workqueue if wq is NULL. */
bool hcablk_c_queue_delayed_work(struct workqueue_struct *wq, struct delayed_work *work,
				 unsigned long delay);
void hcablk_c_init_work(struct work_struct *work, work_func_t func);
struct workqueue_struct *hcablk_c_alloc_workqueue(const char *name, unsigned int flags,
						  int max_active);
void hcablk_c_timer_setup(struct timer_list *timer, void (*function)(struct timer_list *));
void hcablk_c_timer_start(struct timer_list *timer, unsigned int ms);
void hcablk_c_init_irq_work(struct irq_work *work, void (*function)(struct irq_work *));
void hcablk_c_irq_poll_sched(struct irq_poll *poll, struct irq_work *interrupt);
bool hcablk_c_may_print(unsigned int kind);
int hcablk_c_notifier_from_errno(int err);
int hcablk_c_register_pm_notifier(struct notifier_block *notifier);
void hcablk_c_unregister_pm_notifier(struct notifier_block *notifier);
void hcablk_c_local_bh_disable(void);
void hcablk_c_local_bh_enable(void);
void hcablk_c_init_deferred(struct work_struct *work, work_func_t func);
unsigned int hcablk_c_memalloc_flags_save(unsigned int flags);
void hcablk_c_memalloc_flags_restore(unsigned int flags);
bool hcablk_c_queue_work(struct workqueue_struct *wq, struct work_struct *work);
unsigned long hcablk_c_msecs_to_jiffies(unsigned int ms);
void hcablk_c_init_completion(struct completion *c);
void hcablk_c_reinit_completion(struct completion *c);

/* crypto_helpers.c */
void hcablk_c_hmac_sha256(const u8 *key, size_t key_len, const u8 *data, size_t len, u8 *out);
bool hcablk_c_is_equal(const u8 *a, const u8 *b, size_t len);
void hcablk_c_wipe(u8 *bytes, size_t len);
bool hcablk_c_random(u8 *bytes, size_t len);
/* Uses the base point if point is NULL. */
bool hcablk_c_x25519(u8 *out, const u8 *private, const u8 *point);

/* pci_helpers.c */
const char *hcablk_c_pci_name(struct pci_dev *pdev);
unsigned long hcablk_c_pci_resource_flags(struct pci_dev *pdev, int bar);
u64 hcablk_c_pci_resource_len(struct pci_dev *pdev, int bar);
bool hcablk_c_device_trylock(struct pci_dev *pdev);
void hcablk_c_device_unlock(struct pci_dev *pdev);
struct device *hcablk_c_disk_device(struct block_device *bdev);
bool hcablk_c_bdev_peers(struct block_device *bdev);
bool hcablk_c_ib_peers(struct ib_device *dev);
struct page *hcablk_c_virt_to_page(const void *addr);
void hcablk_c_sg_of_page(struct scatterlist *sg, struct page *page, unsigned int len);
void hcablk_c_memcpy_fromio(void *to, const void *from, size_t len);
void hcablk_c_memcpy_toio(void *to, const void *from, size_t len);
u8 hcablk_c_readb(const void *from);

#endif
