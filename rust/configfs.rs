// SPDX-License-Identifier: GPL-2.0

//! Directories under `/sys/kernel/config` that users make and configure.
//!
//! [`kernel::configfs`] has no default groups and no way to refuse `rmdir`, and on 7.2 its root
//! group hands out data of the wrong type. This layer has default groups and can refuse `rmdir`,
//! and has nothing more: all directories are groups, all attributes are text.
//!
//! # Life of a directory
//!
//! - `mkdir` calls [`Node::make_child`] of the parent, under the subsystem's
//!   mutex: one at a time.
//! - Attributes are read and written concurrently; a write that is under way
//!   makes `rmdir` wait.
//! - [`Directory::pin`] makes `rmdir` fail with `EBUSY` from the moment it
//!   succeeds until the pin is dropped. It fails if `rmdir` has begun.
//! - `rmdir` of a directory that has no pin and no children made by `mkdir`
//!   (in itself or in its default groups) ends attribute access, then calls
//!   [`Node::removed`], under the subsystem's mutex.
//! - The module is pinned while there are directories made by `mkdir`, or open attributes.
//!
//! # Unsupported
//!
//! Links, binary attributes, items that are not groups.
//!
//! C headers: [`include/linux/configfs.h`](srctree/include/linux/configfs.h),
//! [`fs/configfs/dir.c`](srctree/fs/configfs/dir.c).

mod entry;
mod output;
mod values;

pub use self::{
    entry::DefaultGroups,
    output::Output,
    values::{
        boolean,
        number, //
    },
};

use self::entry::Entry;
use crate::bindings;
use core::{
    marker::PhantomData,
    ptr::NonNull, //
};
use kernel::{
    error::to_result,
    prelude::*,
    sync::Arc,
    ThisModule, //
};

/// The most attributes that a directory can have.
pub const MAX_ATTRIBUTES: usize = 40;

/// Writes the value of an attribute; should end with a newline.
pub type Show<T> = fn(&T, &mut Output<'_>) -> Result;

/// Takes a written value, without white space around it.
pub type Store<T> = fn(&Arc<T>, &Directory<'_>, &str) -> Result;

/// A file of a directory. Both functions run in process context and may sleep;
/// a written text has at most 4095 bytes.
pub struct Attribute<T> {
    name: &'static CStr,
    show: Option<Show<T>>,
    store: Option<Store<T>>,
    /// Only root can read it.
    is_private: bool,
    /// The written text is overwritten in configfs's buffer.
    is_secret: bool,
}

impl<T> Attribute<T> {
    /// Makes a file that can be read.
    pub const fn read_only(name: &'static CStr, show: Show<T>) -> Self {
        Self {
            name,
            show: Some(show),
            store: None,
            is_private: false,
            is_secret: false,
        }
    }

    /// Makes a file that can be read by root.
    pub const fn private(name: &'static CStr, show: Show<T>) -> Self {
        Self {
            name,
            show: Some(show),
            store: None,
            is_private: true,
            is_secret: false,
        }
    }

    /// Makes a file that can be read, and written by root.
    pub const fn read_write(name: &'static CStr, show: Show<T>, store: Store<T>) -> Self {
        Self {
            name,
            show: Some(show),
            store: Some(store),
            is_private: false,
            is_secret: false,
        }
    }

    /// Creates a file that root can write and nobody can read. The written text is overwritten in
    /// configfs's buffer.
    pub const fn secret(name: &'static CStr, store: Store<T>) -> Self {
        Self {
            name,
            show: None,
            store: Some(store),
            is_private: false,
            is_secret: true,
        }
    }

    const fn mode(&self) -> bindings::umode_t {
        let mut mode = 0;
        if self.show.is_some() {
            mode |= match self.is_private {
                true => bindings::S_IRUSR,
                false => bindings::S_IRUGO,
            };
        }
        if self.store.is_some() {
            mode |= bindings::S_IWUSR;
        }
        mode as bindings::umode_t
    }
}

/// The data of one directory.
pub trait Node: Sized + Send + Sync + 'static {
    /// Its files, at most [`MAX_ATTRIBUTES`].
    const ATTRIBUTES: &'static [Attribute<Self>];

    /// The type of the children that `mkdir` creates; [`NoChild`] if `mkdir` is not allowed.
    type Child: Node;

    /// Handles `mkdir` of `name`. May sleep, but holds up all other `mkdir` and `rmdir` of the
    /// subsystem.
    fn make_child(_this: &Arc<Self>, _name: &str) -> Result<Arc<Self::Child>> {
        Err(EPERM)
    }

    /// Adds the directories that exist in this one from its start to its end.
    fn default_groups(_this: &Arc<Self>, _groups: &mut DefaultGroups) -> Result {
        Ok(())
    }

    /// Handles the end of the directory: after `rmdir`, or after a `mkdir` that failed later than
    /// [`make_child`](Self::make_child). Not called for default groups. May sleep, see
    /// [`make_child`](Self::make_child).
    fn removed(&self) {}
}

/// The child type of directories in which `mkdir` is not allowed.
pub enum NoChild {}

impl Node for NoChild {
    const ATTRIBUTES: &'static [Attribute<Self>] = &[];
    type Child = NoChild;
}

/// The directory whose attribute is being written.
///
/// # Invariants
///
/// `item` is the item of a directory of ours that is attached for `'a`.
pub struct Directory<'a> {
    item: NonNull<bindings::config_item>,
    by_mkdir: bool,
    _attached: PhantomData<&'a ()>,
}

impl Directory<'_> {
    /// Makes `rmdir` fail with `EBUSY` until the pin is dropped.
    ///
    /// Errors: `ENOENT` (`rmdir` has begun), `EINVAL` (a default group or the
    /// root, which cannot be removed anyhow).
    ///
    /// C: `configfs_depend_item_unlocked()`.
    pub fn pin(&self) -> Result<DirectoryPin> {
        if !self.by_mkdir {
            return Err(EINVAL);
        }
        // SAFETY: By the type invariant the item is attached, so it is the
        // first member of a group that knows its subsystem. We are called from
        // an attribute of that same subsystem.
        to_result(unsafe {
            let group = self.item.as_ptr().cast::<bindings::config_group>();
            bindings::configfs_depend_item_unlocked((*group).cg_subsys, self.item.as_ptr())
        })?;
        // INVARIANT: It is pinned now.
        Ok(DirectoryPin(self.item))
    }
}

/// Keeps a directory from being removed. Drop it in process context.
///
/// # Invariants
///
/// The item is alive, and one of its dependents is this one.
pub struct DirectoryPin(NonNull<bindings::config_item>);

// SAFETY: The item is only passed to C functions that lock.
unsafe impl Send for DirectoryPin {}

// SAFETY: As above.
unsafe impl Sync for DirectoryPin {}

impl Drop for DirectoryPin {
    fn drop(&mut self) {
        // SAFETY: By the type invariant.
        unsafe { bindings::configfs_undepend_item(self.0.as_ptr()) };
    }
}

/// A directory directly under `/sys/kernel/config`, removed when dropped.
///
/// The module drops it when the module is unloaded, which the kernel refuses while there are
/// directories made by `mkdir` below.
///
/// # Invariants
///
/// The pointer is to the start of a registered root directory of ours.
pub struct Subsystem(NonNull<bindings::configfs_subsystem>);

// SAFETY: The subsystem is only passed to C functions that lock.
unsafe impl Send for Subsystem {}

// SAFETY: As above.
unsafe impl Sync for Subsystem {}

impl Subsystem {
    /// Creates the directory `name` with the data `root`.
    ///
    /// Sleeps. Errors: `EEXIST`, `ENOMEM`, those of [`Node::default_groups`].
    ///
    /// C: `configfs_register_subsystem()`.
    pub fn register<T: Node>(
        name: &CStr,
        root: Arc<T>,
        module: &'static ThisModule,
    ) -> Result<Self> {
        let group = Entry::make(name, root, false, module)?;
        let subsystem = group.cast::<bindings::configfs_subsystem>();
        // SAFETY: By the type invariant of `Entry` the group begins a whole
        // subsystem, nobody else knows it yet.
        let result = to_result(unsafe {
            bindings::hcablk_c_configfs_init_subsystem(subsystem.as_ptr());
            bindings::configfs_register_subsystem(subsystem.as_ptr())
        });
        if let Err(e) = result {
            // SAFETY: The one reference.
            unsafe { bindings::config_item_put(group.as_ptr().cast()) };
            return Err(e);
        }
        // INVARIANT: It is registered.
        Ok(Self(subsystem))
    }
}

impl Drop for Subsystem {
    fn drop(&mut self) {
        // SAFETY: By the type invariant; the reference that `make` returned.
        unsafe {
            bindings::configfs_unregister_subsystem(self.0.as_ptr());
            bindings::config_item_put(self.0.as_ptr().cast());
        }
    }
}
