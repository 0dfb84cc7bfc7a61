// SPDX-License-Identifier: GPL-2.0

//! Directories as configfs knows them: the C structures, and the functions that it calls.

use super::{
    output::{
        Output,
        ATTRIBUTE_SIZE, //
    },
    Directory,
    Node,
    Store,
    MAX_ATTRIBUTES, //
};
use crate::{
    bindings,
    crypto::wipe,
    sync::defer::without_io, //
};
use core::{
    marker::PhantomData,
    ptr::{
        null_mut,
        NonNull, //
    },
};
use kernel::{
    prelude::*,
    sync::Arc,
    types::Opaque,
    ThisModule, //
};

/// A directory, as configfs knows it.
///
/// # Invariants
///
/// - It is in memory that does not move, and lives until `release`.
/// - `subsystem` begins with the group, and the group with the item; only the root uses the fields
///   after the group.
/// - `item_type` points to `table`, `table` to the elements of `attributes`.
#[repr(C)]
pub(super) struct Entry<T: Node> {
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
    pub(super) fn make(
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
        // SAFETY: `entry` begins with a zeroed group; the item type lives as long as `entry`.
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
            // SAFETY: This puts the only reference, which frees `entry` and the groups added so
            // far.
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
    unsafe fn from_item<'a>(item: *mut bindings::config_item) -> &'a Self {
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

/// configfs does not pass the attribute to the functions that it calls, so each place in the table
/// of attributes has a function of its own.
macro_rules! for_each_place {
    ($function:ident) => {
        for_each_place!(
            $function: 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27
                28 29 30 31 32 33 34 35 36 37 38 39
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
        let entry = unsafe { Entry::<T>::from_item(item) };
        let mut output = Output::new(page);
        match without_io(|| show(&entry.data, &mut output)) {
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
        let Some((store, is_secret)) = T::ATTRIBUTES
            .get(I)
            .and_then(|attribute| Some((attribute.store?, attribute.is_secret)))
        else {
            return EINVAL.to_errno() as isize;
        };
        // SAFETY: By the safety requirement.
        let written = unsafe { Self::call_store(item, page, count, store) };
        if is_secret {
            // SAFETY: The page is configfs's copy of the written text, which it passes to this
            // function alone, under the mutex of the open file; it is `const` only because no other
            // driver needed more.
            wipe(unsafe { core::slice::from_raw_parts_mut(page.cast_mut().cast::<u8>(), count) });
        }
        written
    }

    /// Passes the written text to `store`.
    ///
    /// # Safety
    ///
    /// As of `store`.
    unsafe fn call_store(
        item: *mut bindings::config_item,
        page: *const c_char,
        count: usize,
        store: Store<T>,
    ) -> isize {
        // SAFETY: By the safety requirement.
        let bytes = unsafe { core::slice::from_raw_parts(page.cast::<u8>(), count) };
        let (Ok(text), Some(pointer)) = (core::str::from_utf8(bytes), NonNull::new(item)) else {
            return EINVAL.to_errno() as isize;
        };
        // SAFETY: By the safety requirement.
        let entry = unsafe { Entry::<T>::from_item(item) };
        // INVARIANT: The item stays attached while the attribute is written.
        let directory = Directory {
            item: pointer,
            by_mkdir: entry.by_mkdir,
            _attached: PhantomData,
        };
        match without_io(|| store(&entry.data, &directory, text.trim())) {
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
        let (entry, name) = unsafe {
            (
                Entry::<T>::from_item(group.cast()),
                CStr::from_char_ptr(name),
            )
        };
        let make = || {
            let text = name.to_str().map_err(|_| EINVAL)?;
            let child = T::make_child(&entry.data, text)?;
            // If the directory cannot be made, `removed` undoes the changes of `make_child`.
            Entry::make(name, child.clone(), true, entry.module).inspect_err(|_| child.removed())
        };
        match without_io(make) {
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
        let child = unsafe { Entry::<T::Child>::from_item(item) };
        without_io(|| child.data.removed());
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
        // SAFETY: `make` made it, and no reference to it is left.
        drop(unsafe { KBox::from_raw(item.cast::<Entry<T>>()) });
    }
}
