// SPDX-License-Identifier: GPL-2.0

//! The capabilities of an RDMA device.

use crate::bindings;

/// The attributes of a device that matter to a block driver. The counts come from `struct
/// ib_device_attr`, whose fields are signed on some kernels and unsigned on others.
#[derive(Clone, Copy, Debug)]
pub struct Attributes {
    /// Work requests on one queue of a queue pair.
    pub max_qp_wr: u32,
    /// Scatter-gather entries of a send or an RDMA WRITE.
    pub max_send_sge: u32,
    /// Scatter-gather entries of a receive.
    pub max_recv_sge: u32,
    /// Scatter-gather entries of an RDMA READ.
    pub max_sge_rd: u32,
    /// Entries of a completion queue.
    pub max_cqe: u32,
    /// Pages of a fast-registration memory region.
    pub max_fast_reg_pages: u32,
    /// RDMA READs that a peer may have in flight towards a queue pair.
    pub max_qp_rd_atom: u8,
    /// RDMA READs that a queue pair may have in flight.
    pub max_qp_init_rd_atom: u8,
    /// Completion vectors: interrupts to spread completion queues over.
    pub completion_vectors: u32,
    /// Memory can be registered with work requests.
    pub fast_registration: bool,
    /// The NUMA node of the device; negative if it is not known.
    pub numa_node: i32,
    /// The largest mapping in bytes, if the device may be unable to reach memory, so that mapped
    /// data is copied to bounce buffers (swiotlb). A bounce buffer may begin anywhere, so a mapped
    /// segment need not end at a page boundary.
    pub bounce_bytes: Option<u32>,
    /// An IOMMU translates the device's addresses, strictly or lazily: each mapping costs changes
    /// of its page tables, and a flush of its cache at once or with others.
    pub translated: bool,
}

impl Attributes {
    /// # Safety
    ///
    /// `device` is alive.
    pub(super) unsafe fn from_device(device: *mut bindings::ib_device) -> Self {
        // SAFETY: The caller guarantees that the device is alive; its
        // attributes do not change once it is registered.
        let (attrs, vectors) = unsafe { (&(*device).attrs, (*device).num_comp_vectors) };
        // SAFETY: By the safety requirement.
        let max_mapping = unsafe { bindings::hcablk_c_ib_dma_max_mapping(device) };
        let count = |value: i64| u32::try_from(value).unwrap_or(0);
        let small = |value: i64| u8::try_from(value.clamp(0, 255)).unwrap_or(0);
        let caps = attrs.device_cap_flags;
        let extensions =
            u64::from(bindings::ib_device_cap_flags_IB_DEVICE_MEM_MGT_EXTENSIONS as u32);
        Self {
            max_qp_wr: count(i64::from(attrs.max_qp_wr)),
            max_send_sge: count(i64::from(attrs.max_send_sge)).max(1),
            max_recv_sge: count(i64::from(attrs.max_recv_sge)).max(1),
            max_sge_rd: count(i64::from(attrs.max_sge_rd)).max(1),
            max_cqe: count(i64::from(attrs.max_cqe)),
            max_fast_reg_pages: attrs.max_fast_reg_page_list_len,
            max_qp_rd_atom: small(i64::from(attrs.max_qp_rd_atom)),
            max_qp_init_rd_atom: small(i64::from(attrs.max_qp_init_rd_atom)),
            completion_vectors: u32::try_from(vectors).unwrap_or(1).max(1),
            fast_registration: caps & extensions != 0,
            // SAFETY: By the safety requirement.
            numa_node: unsafe { bindings::hcablk_c_ibdev_node(device) },
            bounce_bytes: match max_mapping {
                usize::MAX => None,
                bytes => Some(bytes.try_into().unwrap_or(u32::MAX)),
            },
            // SAFETY: By the safety requirement.
            translated: unsafe { bindings::hcablk_c_ib_dma_translated(device) },
        }
    }
}

/// The direction of a transfer between memory and a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// The device reads memory.
    ToDevice,
    /// The device writes memory.
    FromDevice,
    /// Both, one after the other.
    Bidirectional,
}

impl Direction {
    #[cfg(not(hcablk_kernel_7_3))]
    #[inline]
    pub(crate) fn as_raw(self) -> bindings::dma_data_direction {
        match self {
            Self::ToDevice => bindings::dma_data_direction_DMA_TO_DEVICE,
            Self::FromDevice => bindings::dma_data_direction_DMA_FROM_DEVICE,
            Self::Bidirectional => bindings::dma_data_direction_DMA_BIDIRECTIONAL,
        }
    }

    #[cfg(hcablk_kernel_7_3)]
    #[inline]
    pub(crate) fn as_raw(self) -> bindings::dma_data_direction {
        match self {
            Self::ToDevice => bindings::dma_data_direction::DMA_TO_DEVICE,
            Self::FromDevice => bindings::dma_data_direction::DMA_FROM_DEVICE,
            Self::Bidirectional => bindings::dma_data_direction::DMA_BIDIRECTIONAL,
        }
    }
}
