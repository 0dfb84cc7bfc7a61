// SPDX-License-Identifier: GPL-2.0

//! Uevents of a disk, sent on a workqueue of their own.
//!
//! The kernel sends all uevents under one mutex, whose holder may wait for memory
//! (`uevent_net_broadcast_untagged()`). Freeing that memory may require writes to this very disk.
//! So code that brings the disk back sends no uevent: it queues its news here and continues.
//!
//! # Locks and contexts
//!
//! `announcer` is held while a uevent is sent: removing the disk waits for that, and fails the
//! disk's requests first. `waiting` is held for look-ups and changes only.

use crate::{
    failure::Failure,
    workqueues::AllQueues, //
};
use hcablk_core::{
    blkdev::Announcer,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        defer::without_io,
    },
};
use kernel::{
    impl_has_work, new_mutex,
    prelude::*,
    str::CString,
    sync::{
        Arc,
        Mutex, //
    },
    workqueue::{
        new_work,
        Work,
        WorkItem, //
    },
};

/// The most uevents that wait to be sent. Each path has two announced states, and the disk a few.
const WAITING_MAX: usize = 64;

/// A change that user space is notified of.
#[derive(Clone, Copy)]
pub(super) enum News {
    /// A path, or the disk, has entered another state.
    State {
        path: Option<u8>,
        state: &'static CStr,
        failure: Option<Failure>,
    },
    /// The target's portals have changed; `auto`: user space adds a path to the disk for each.
    Portals { auto: bool },
    /// The size of the disk has changed.
    Resized,
    /// The disk has become read-only, or writable.
    ReadOnly(bool),
    /// The target has lost acknowledged writes, or flushes succeed again.
    LostWrites(bool),
}

/// The queue of a disk's uevents; see the module.
#[pin_data]
pub(super) struct Announcements {
    /// The disk's name in configfs.
    disk: CString,
    queues: Arc<AllQueues>,
    /// The disk exists.
    has_disk: Atomic<bool>,
    /// The waiting news, oldest first. It has room for [`WAITING_MAX`].
    #[pin]
    waiting: Mutex<KVec<News>>,
    #[pin]
    announcer: Mutex<Option<Announcer>>,
    #[pin]
    work: Work<Announcements>,
}

impl_has_work! {
    impl HasWork<Self> for Announcements { self.work }
}

impl Announcements {
    /// Creates the queue of the disk of this name, which does not exist yet. May sleep.
    pub(super) fn new(disk: &str, queues: &Arc<AllQueues>) -> Result<Arc<Self>> {
        let disk = CString::try_from_fmt(fmt!("{disk}"))?;
        let waiting = KVec::with_capacity(WAITING_MAX, GFP_KERNEL)?;
        let announcements = pin_init!(Self {
            disk,
            queues: queues.clone(),
            has_disk: Atomic::new(false),
            waiting <- new_mutex!(waiting),
            announcer <- new_mutex!(None),
            work <- new_work!("hcablk::Announcements"),
        });
        Arc::pin_init(announcements, GFP_KERNEL)
    }

    /// Sets the disk that sends the uevents from now on; waiting news is announced by the former
    /// disk. Sleeps until a uevent that is being sent has been sent. When the disk is being
    /// removed, none of its requests may wait any more.
    pub(super) fn set_announcer(&self, announcer: Option<Announcer>) {
        self.has_disk.store(announcer.is_some(), Relaxed);
        let mut place = self.announcer.lock();
        self.announce_all(place.as_ref());
        let former = core::mem::replace(&mut *place, announcer);
        drop(place);
        drop(former);
    }

    /// Queues news for user space; `false`: there is no disk, or no room for more. Process
    /// context; waits for nothing.
    pub(super) fn announce(self: &Arc<Self>, news: News) -> bool {
        if !self.has_disk.load(Relaxed) {
            return false;
        }
        let pushed = self.waiting.lock().push_within_capacity(news).is_ok();
        if !pushed {
            pr_warn!(
                "{}: cannot notify user space of a change: too many events wait\n",
                self.name()
            );
        }
        // If the work is queued already, it has not looked at `waiting` yet.
        let _ = self.queues.events().enqueue(self.clone());
        pushed
    }

    /// Sends all waiting news. The caller holds `announcer`.
    fn announce_all(&self, announcer: Option<&Announcer>) {
        loop {
            let next = self.waiting.lock().remove(0);
            let Ok(news) = next else {
                return;
            };
            if let Some(announcer) = announcer {
                self.send(announcer, news);
            }
        }
    }

    fn send(&self, announcer: &Announcer, news: News) {
        // The removal of the disk waits for this.
        let result = without_io(|| match news {
            News::State {
                path,
                state,
                failure,
            } => self.send_state(announcer, path, state, failure),
            News::Portals { auto } => {
                let disk = self.variable()?;
                let auto = CString::try_from_fmt(fmt!("HCABLK_PATHS_AUTO={}", u8::from(auto)))?;
                announcer.announce(&[&disk, c"HCABLK_PORTALS=1", &auto])
            }
            News::Resized => announcer.announce(&[c"RESIZE=1"]),
            // The same event as set_disk_ro() sends.
            News::ReadOnly(true) => announcer.announce(&[c"DISK_RO=1"]),
            News::ReadOnly(false) => announcer.announce(&[c"DISK_RO=0"]),
            News::LostWrites(lost) => {
                let disk = self.variable()?;
                let lost = CString::try_from_fmt(fmt!("HCABLK_LOST_WRITES={}", u8::from(lost)))?;
                announcer.announce(&[&disk, &lost])
            }
        });
        if let Err(e) = result {
            pr_warn!(
                "{}: cannot notify user space of a change (error {})\n",
                self.name(),
                e.to_errno()
            );
        }
    }

    /// Returns the disk's name in configfs.
    pub(super) fn disk(&self) -> &CStr {
        &self.disk
    }

    pub(super) fn name(&self) -> &str {
        self.disk.to_str().unwrap_or("?")
    }

    fn variable(&self) -> Result<CString> {
        let disk = self.name();
        CString::try_from_fmt(fmt!("HCABLK_DISK={disk}"))
    }

    fn send_state(
        &self,
        announcer: &Announcer,
        path: Option<u8>,
        state: &CStr,
        failure: Option<Failure>,
    ) -> Result {
        let disk = self.variable()?;
        let state = state.to_str().map_err(|_| EINVAL)?;
        let state = CString::try_from_fmt(fmt!("HCABLK_STATE={state}"))?;
        let path = path.map(|path| CString::try_from_fmt(fmt!("HCABLK_PATH={path}")));
        let path = path.transpose()?;
        let error = failure.map(|why| CString::try_from_fmt(fmt!("HCABLK_ERROR={why}")));
        let error = error.transpose()?;
        let mut variables: KVec<&CStr> = KVec::new();
        let all = [Some(&disk), path.as_ref(), Some(&state), error.as_ref()];
        for variable in all.into_iter().flatten() {
            variables.push(variable, GFP_KERNEL)?;
        }
        announcer.announce(&variables)
    }
}

impl WorkItem for Announcements {
    type Pointer = Arc<Self>;

    fn run(this: Arc<Self>) {
        let announcer = this.announcer.lock();
        this.announce_all(announcer.as_ref());
    }
}
