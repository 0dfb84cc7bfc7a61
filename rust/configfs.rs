// SPDX-License-Identifier: GPL-2.0

//! Directories under `/sys/kernel/config` that users make and configure.
//!
//! [`kernel::configfs`] has no default groups and no way to refuse `rmdir`,
//! and on 7.2 its root group hands out data of the wrong type; this layer has
//! these and nothing more: all directories are groups, all attributes are text.
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
//! - The module is pinned as long as there are directories made by `mkdir`, or
//!   open attributes.
//!
//! # Unsupported
//!
//! Links, binary attributes, items that are no groups.
//!
//! C headers: [`include/linux/configfs.h`](srctree/include/linux/configfs.h),
//! [`fs/configfs/dir.c`](srctree/fs/configfs/dir.c).

mod output;
mod values;

pub use self::{
    output::Output,
    values::{
        boolean,
        number, //
    },
};

use self::output::ATTRIBUTE_SIZE;
use crate::bindings;
use core::{
    marker::PhantomData,
    ptr::{
        null_mut,
        NonNull, //
    },
};
use kernel::{
    error::to_result,
    prelude::*,
    sync::Arc,
    types::Opaque,
    ThisModule, //
};

/// Attributes a directory can have.
pub const MAX_ATTRIBUTES: usize = 32;

/// Writes the value of an attribute; should end with a newline.
pub type Show<T> = fn(&T, &mut Output<'_>) -> Result;

/// Takes a written value, without white space around it.
pub type Store<T> = fn(&Arc<T>, &Directory<'_>, &str) -> Result;

/// A file of a directory. Both functions run in process context and may sleep;
/// the text is at most 4095 bytes.
pub struct Attribute<T> {
    name: &'static CStr,
    show: Option<Show<T>>,
    store: Option<Store<T>>,
}

impl<T> Attribute<T> {
    /// Makes a file that can be read.
    pub const fn read_only(name: &'static CStr, show: Show<T>) -> Self {
        Self {
            name,
            show: Some(show),
            store: None,
        }
    }

    /// Makes a file that can be read, and written by root.
    pub const fn read_write(name: &'static CStr, show: Show<T>, store: Store<T>) -> Self {
        Self {
            name,
            show: Some(show),
            store: Some(store),
        }
    }

    const fn mode(&self) -> bindings::umode_t {
        let mut mode = 0;
        if self.show.is_some() {
            mode |= bindings::S_IRUGO;
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

    /// What `mkdir` in it makes; [`NoChild`] if that is not allowed.
    type Child: Node;

    /// Handles `mkdir` of `name`. May sleep, but holds up all other `mkdir` and `rmdir` of the
    /// subsystem.
    fn make_child(_this: &Arc<Self>, _name: &str) -> Result<Arc<Self::Child>> {
        Err(EPERM)
    }

    /// Adds directories that are always there.
    fn default_groups(_this: &Arc<Self>, _groups: &mut DefaultGroups) -> Result {
        Ok(())
    }

    /// Handles the end of the directory: after `rmdir`, or after a `mkdir` that failed later than
    /// [`make_child`](Self::make_child). Not called for default groups. May sleep, see
    /// [`make_child`](Self::make_child).
    fn removed(&self) {}
}

/// There is no such directory.
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
    /// Makes `rmdir` fail with `EBUSY` as long as the pin lives.
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

/// Keeps a directory from being removed. To be dropped in process context.
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

/// A directory, as configfs knows it.
///
/// # Invariants
///
/// - It is in memory that does not move, and lives until `release`.
/// - `subsystem` begins with the group, that begins with the item; only the
///   root uses what comes after the group.
/// - `item_type` points to `table`, `table` to the elements of `attributes`.
#[repr(C)]
struct Entry<T: Node> {
    subsystem: Opaque<bindings::configfs_subsystem>,
    item_type: bindings::config_item_type,
    attributes: KVec<bindings::configfs_attribute>,
    table: KVec<*mut bindings::configfs_attribute>,
    by_mkdir: bool,
    module: &'static ThisModule,
    data: Arc<T>,
}

impl<T: Node> Entry<T> {
    /// Makes the C structures of the attributes.
    fn attributes(module: &'static ThisModule) -> Result<KVec<bindings::configfs_attribute>> {
        let mut attributes = KVec::with_capacity(T::ATTRIBUTES.len(), GFP_KERNEL)?;
        let callbacks = Callbacks::<T>::SHOW.iter().zip(&Callbacks::<T>::STORE);
        for (attribute, (&show, &store)) in T::ATTRIBUTES.iter().zip(callbacks) {
            attributes.push(
                bindings::configfs_attribute {
                    ca_name: attribute.name.as_char_ptr(),
                    ca_owner: module.as_ptr(),
                    ca_mode: attribute.mode(),
                    show: attribute.show.map(|_| show),
                    store: attribute.store.map(|_| store),
                },
                GFP_KERNEL,
            )?;
        }
        Ok(attributes)
    }

    /// Makes a directory that is not attached yet, with one reference. May sleep.
    fn make(
        name: &CStr,
        data: Arc<T>,
        by_mkdir: bool,
        module: &'static ThisModule,
    ) -> Result<NonNull<bindings::config_group>> {
        let attributes = Self::attributes(module)?;
        let mut entry = KBox::new(
            Self {
                subsystem: Opaque::zeroed(),
                item_type: bindings::config_item_type {
                    ct_owner: module.as_ptr(),
                    ct_item_ops: &Callbacks::<T>::ITEM,
                    ct_group_ops: &Callbacks::<T>::GROUP,
                    ..pin_init::zeroed()
                },
                table: KVec::with_capacity(attributes.len() + 1, GFP_KERNEL)?,
                attributes,
                by_mkdir,
                module,
                data,
            },
            GFP_KERNEL,
        )?;
        let this = &mut *entry;
        for attribute in this.attributes.iter_mut() {
            this.table
                .push(core::ptr::from_mut(attribute), GFP_KERNEL)?;
        }
        this.table.push(null_mut(), GFP_KERNEL)?;
        this.item_type.ct_attrs = this.table.as_mut_ptr();

        // INVARIANT: The box does not move from here on, its tables point to
        // each other.
        let entry = KBox::into_raw(entry);
        let group = entry.cast::<bindings::config_group>();
        // SAFETY: `entry` begins with a zeroed group; the type lives in it.
        unsafe {
            bindings::config_group_init_type_name(
                group,
                name.as_char_ptr(),
                &raw const (*entry).item_type,
            )
        };
        let mut groups = DefaultGroups { group, module };
        // SAFETY: `entry` is alive, and nothing changes its data.
        if let Err(e) = T::default_groups(unsafe { &(*entry).data }, &mut groups) {
            // SAFETY: The one reference; this frees it and the groups made.
            unsafe { bindings::config_item_put(group.cast()) };
            return Err(e);
        }
        NonNull::new(group).ok_or(ENOMEM)
    }

    /// Returns the directory of an item.
    ///
    /// # Safety
    ///
    /// `item` is alive for `'a` and was made by `make` of the same type.
    unsafe fn of<'a>(item: *mut bindings::config_item) -> &'a Self {
        // SAFETY: By the safety requirement and the type invariant.
        unsafe { &*item.cast::<Self>() }
    }
}

/// Collects the default groups of a directory.
///
/// # Invariants
///
/// `group` is a group of ours that is not attached yet.
pub struct DefaultGroups {
    group: *mut bindings::config_group,
    module: &'static ThisModule,
}

impl DefaultGroups {
    /// Adds a directory `name` with the data `node`.
    pub fn add<N: Node>(&mut self, name: &CStr, node: Arc<N>) -> Result {
        let group = Entry::make(name, node, false, self.module)?;
        // SAFETY: Both are set up, and by the type invariant nobody else uses
        // them. The list takes our reference, `release` puts it.
        unsafe { bindings::hcablk_c_configfs_add_default_group(group.as_ptr(), self.group) };
        Ok(())
    }
}

/// The C functions for the directories of a type.
struct Callbacks<T: Node>(PhantomData<T>);

type ShowFn = unsafe extern "C" fn(*mut bindings::config_item, *mut c_char) -> isize;
type StoreFn = unsafe extern "C" fn(*mut bindings::config_item, *const c_char, usize) -> isize;

/// configfs does not tell a function which attribute it is called for: one
/// function for each place.
macro_rules! for_each_place {
    ($function:ident) => {
        for_each_place!(
            $function: 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27
                28 29 30 31
        )
    };
    ($function:ident: $($place:literal)*) => {
        [$(Self::$function::<$place>),*]
    };
}

impl<T: Node> Callbacks<T> {
    const ENOUGH: () = assert!(T::ATTRIBUTES.len() <= MAX_ATTRIBUTES);
    const SHOW: [ShowFn; MAX_ATTRIBUTES] = for_each_place!(show);
    const STORE: [StoreFn; MAX_ATTRIBUTES] = for_each_place!(store);
    const ITEM: bindings::configfs_item_operations = bindings::configfs_item_operations {
        release: Some(Self::release),
        ..pin_init::zeroed()
    };
    const GROUP: bindings::configfs_group_operations = bindings::configfs_group_operations {
        make_group: Some(Self::make_group),
        drop_item: Some(Self::drop_item),
        ..pin_init::zeroed()
    };

    /// # Safety
    ///
    /// Called by configfs on an attached item of `T`, `page` is a page.
    unsafe extern "C" fn show<const I: usize>(
        item: *mut bindings::config_item,
        page: *mut c_char,
    ) -> isize {
        let () = Self::ENOUGH;
        let Some(show) = T::ATTRIBUTES.get(I).and_then(|attribute| attribute.show) else {
            return EINVAL.to_errno() as isize;
        };
        // SAFETY: By the safety requirement; a page is larger.
        let page = unsafe { core::slice::from_raw_parts_mut(page.cast::<u8>(), ATTRIBUTE_SIZE) };
        // SAFETY: By the safety requirement.
        let entry = unsafe { Entry::<T>::of(item) };
        let mut output = Output::new(page);
        match show(&entry.data, &mut output) {
            Ok(()) => output.finish() as isize,
            Err(e) => e.to_errno() as isize,
        }
    }

    /// # Safety
    ///
    /// Called by configfs on an attached item of `T`, `page` has `count` bytes.
    unsafe extern "C" fn store<const I: usize>(
        item: *mut bindings::config_item,
        page: *const c_char,
        count: usize,
    ) -> isize {
        let Some(store) = T::ATTRIBUTES.get(I).and_then(|attribute| attribute.store) else {
            return EINVAL.to_errno() as isize;
        };
        // SAFETY: By the safety requirement.
        let bytes = unsafe { core::slice::from_raw_parts(page.cast::<u8>(), count) };
        let (Ok(text), Some(pointer)) = (core::str::from_utf8(bytes), NonNull::new(item)) else {
            return EINVAL.to_errno() as isize;
        };
        // SAFETY: By the safety requirement.
        let entry = unsafe { Entry::<T>::of(item) };
        // INVARIANT: The item stays attached while the attribute is written.
        let directory = Directory {
            item: pointer,
            by_mkdir: entry.by_mkdir,
            _attached: PhantomData,
        };
        match store(&entry.data, &directory, text.trim()) {
            Ok(()) => count as isize,
            Err(e) => e.to_errno() as isize,
        }
    }

    /// # Safety
    ///
    /// Called by configfs on an attached group of `T`, `name` is a string.
    unsafe extern "C" fn make_group(
        group: *mut bindings::config_group,
        name: *const c_char,
    ) -> *mut bindings::config_group {
        // SAFETY: By the safety requirement.
        let (entry, name) = unsafe { (Entry::<T>::of(group.cast()), CStr::from_char_ptr(name)) };
        let make = || {
            let text = name.to_str().map_err(|_| EINVAL)?;
            let child = T::make_child(&entry.data, text)?;
            // What making the child has changed is undone if there is no directory to remove.
            Entry::make(name, child.clone(), true, entry.module).inspect_err(|_| child.removed())
        };
        match make() {
            Ok(group) => group.as_ptr(),
            Err(e) => e.to_ptr(),
        }
    }

    /// # Safety
    ///
    /// Called by configfs once on an item that `make_group` of `T` made.
    unsafe extern "C" fn drop_item(
        _group: *mut bindings::config_group,
        item: *mut bindings::config_item,
    ) {
        // SAFETY: By the safety requirement.
        unsafe { Entry::<T::Child>::of(item) }.data.removed();
        // SAFETY: The reference that `make_group` returned.
        unsafe { bindings::config_item_put(item) };
    }

    /// # Safety
    ///
    /// Called by configfs when the last reference on an item of `T` is gone.
    unsafe extern "C" fn release(item: *mut bindings::config_item) {
        // SAFETY: The default groups are not attached any more; this puts the
        // references that the list took.
        unsafe { bindings::configfs_remove_default_groups(item.cast()) };
        // SAFETY: `make` made it, nobody has it any more.
        drop(unsafe { KBox::from_raw(item.cast::<Entry<T>>()) });
    }
}

/// A directory directly under `/sys/kernel/config`, removed when dropped.
///
/// It is the module's to drop, when it is unloaded: as long as there are
/// directories made by `mkdir` below, the module cannot be.
///
/// # Invariants
///
/// The pointer is to the begin of a registered root directory of ours.
pub struct Subsystem(NonNull<bindings::configfs_subsystem>);

// SAFETY: The subsystem is only passed to C functions that lock.
unsafe impl Send for Subsystem {}

// SAFETY: As above.
unsafe impl Sync for Subsystem {}

impl Subsystem {
    /// Shows the directory `name` with the data `root`.
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
