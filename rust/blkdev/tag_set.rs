// SPDX-License-Identifier: GPL-2.0

//! The set of tags and hardware queues behind a disk.
//!
//! C header: [`include/linux/blk-mq.h`](srctree/include/linux/blk-mq.h)

use super::{
    operations::Vtable,
    request::Pdu,
    Dispatch, //
    Operations,
};
use crate::bindings;
use kernel::{
    error::to_result,
    prelude::*,
    sync::Arc,
    types::Opaque, //
};

/// The parameters of a tag set. Hardware queues and depth are those of its [`Dispatch`].
pub struct TagSetConfig {
    /// The time after which a started request times out, in milliseconds; 0 means 30 seconds.
    pub timeout_ms: u32,
    /// The NUMA node of its memory; `None` means any.
    pub numa_node: Option<i32>,
    /// Use no I/O scheduler by default; users can still choose one.
    pub no_scheduler: bool,
    /// How many of the hardware queues, the last ones, are for polled I/O; not
    /// all of them. See [`Operations::poll`].
    pub poll_queues: u32,
}

/// The target of the tag set's `driver_data`, for the C functions.
pub(super) struct TagSetContext<T: Operations> {
    pub(super) data: Arc<T::Data>,
    pub(super) dispatch: Arc<Dispatch<T>>,
    pub(super) poll_queues: u32,
}

/// A `struct blk_mq_tag_set`.
///
/// A [`Disk`](super::Disk) owns a reference, and drops it after all its requests have ended. The
/// last reference must be dropped where sleeping is allowed; completions need only the
/// [`Dispatch`].
///
/// # Invariants
///
/// `set` was set up by `blk_mq_alloc_tag_set()`, its `driver_data` points to
/// `context`.
#[pin_data(PinnedDrop)]
pub struct TagSet<T: Operations> {
    #[pin]
    set: Opaque<bindings::blk_mq_tag_set>,
    context: KBox<TagSetContext<T>>,
}

// SAFETY: The C structure has its own locks; what is in `context` is `Send` and
// `Sync`.
unsafe impl<T: Operations> Send for TagSet<T> {}

// SAFETY: As above.
unsafe impl<T: Operations> Sync for TagSet<T> {}

impl<T: Operations> TagSet<T> {
    /// Makes a tag set; calls [`Operations::init_request`] for every tag.
    ///
    /// blk-mq may make fewer hardware queues than `requests` has room for (at most one for each
    /// CPU, if none is for polled I/O), see [`hw_queues`](Self::hw_queues).
    ///
    /// May sleep. Errors: `EINVAL` (only queues for polled I/O), `EBUSY` (`requests` is used by
    /// another tag set), `ENOMEM`, those of `init_request`.
    ///
    /// C: `blk_mq_alloc_tag_set()`.
    pub fn new(
        config: &TagSetConfig,
        dispatch: &Arc<Dispatch<T>>,
        data: Arc<T::Data>,
    ) -> Result<Arc<Self>> {
        if config.poll_queues >= dispatch.hw_queues() {
            return Err(EINVAL);
        }
        dispatch.claim()?;
        let context = KBox::new(
            TagSetContext {
                data,
                dispatch: dispatch.clone(),
                poll_queues: config.poll_queues,
            },
            GFP_KERNEL,
        )?;
        let timeout = kernel::time::msecs_to_jiffies(config.timeout_ms);
        let set = bindings::blk_mq_tag_set {
            ops: Vtable::<T>::build(),
            nr_hw_queues: dispatch.hw_queues(),
            // The block layer offers polled I/O if there is a map for it.
            nr_maps: match config.poll_queues {
                0 => 1,
                _ => bindings::hctx_type_HCTX_MAX_TYPES,
            },
            queue_depth: dispatch.depth(),
            timeout: u32::try_from(timeout)?,
            numa_node: config.numa_node.unwrap_or(bindings::NUMA_NO_NODE),
            cmd_size: size_of::<Pdu<T>>() as u32,
            flags: if config.no_scheduler {
                bindings::BLK_MQ_F_NO_SCHED_BY_DEFAULT
            } else {
                0
            },
            driver_data: core::ptr::from_ref(&*context).cast_mut().cast(),
            ..pin_init::zeroed()
        };
        Arc::pin_init(
            // INVARIANT: The set is set up in place, `driver_data` was set above.
            try_pin_init!(Self {
                set <- Opaque::try_ffi_init(|slot: *mut bindings::blk_mq_tag_set| {
                    // SAFETY: The slot is ours to fill, and stays where it is.
                    unsafe { slot.write(set) };
                    // SAFETY: It was filled in just now; the context that the
                    // callbacks use exists.
                    to_result(unsafe { bindings::blk_mq_alloc_tag_set(slot) })
                }),
                context,
            }),
            GFP_KERNEL,
        )
    }

    /// Returns how many hardware queues there are.
    pub fn hw_queues(&self) -> u32 {
        // SAFETY: By the type invariant; the number does not change.
        unsafe { (*self.set.get()).nr_hw_queues }
    }

    /// Returns how many tags each hardware queue has.
    pub fn depth(&self) -> u32 {
        // SAFETY: By the type invariant; the number does not change.
        unsafe { (*self.set.get()).queue_depth }
    }

    /// Returns the shared data.
    pub fn data(&self) -> &Arc<T::Data> {
        &self.context.data
    }

    /// Returns the table of started requests.
    pub fn dispatch(&self) -> &Arc<Dispatch<T>> {
        &self.context.dispatch
    }

    pub(super) fn as_raw(&self) -> *mut bindings::blk_mq_tag_set {
        self.set.get()
    }
}

#[pinned_drop]
impl<T: Operations> PinnedDrop for TagSet<T> {
    fn drop(self: Pin<&mut Self>) {
        // SAFETY: By the type invariant it is set up; no disk is left, because
        // a disk owns a reference.
        unsafe { bindings::blk_mq_free_tag_set(self.set.get()) };
    }
}
