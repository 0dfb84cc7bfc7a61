// SPDX-License-Identifier: GPL-2.0

//! Fields of a driver's objects, on which C code works while it has the object: the `struct bio` of
//! an I/O, or a work item.
//!
//! The layer takes such an object in its box, lets C code work on the field, and returns the object
//! afterwards. In the meantime there are only shared references to the object, through which the
//! layer asks for the parameters of the work. The field must stay where it is while there are only
//! such references: that is the promise of [`HasSlot`], which safe code implements with
//! [`impl_has_slot`](crate::impl_has_slot), as the kernel's `impl_has_work!` does for its work.

/// An object with an embedded `S`, on which C code works.
///
/// # Safety
///
/// The `S` is a field of the object itself: while there are only shared references to the object,
/// it is neither replaced nor dropped.
pub unsafe trait HasSlot<S> {
    /// Returns the slot within the object.
    #[doc(hidden)]
    fn slot_mut(&mut self) -> &mut S;
}

/// Declares which field of a type is its slot of another type. The parameters of a generic type,
/// with their bounds, come first: `impl_has_slot!({O: Owner} Io<O>, slot: BioSlot)`.
#[macro_export]
macro_rules! impl_has_slot {
    ($({$($parameters:tt)*})? $type:ty, $field:ident: $slot:ty) => {
        // SAFETY: `offset_of!` takes only a field of the type itself, and a raw pointer to the
        // field has the slot's type only if the field is the slot itself, not if it dereferences to
        // one.
        unsafe impl $(<$($parameters)*>)? $crate::sync::embedded::HasSlot<$slot> for $type {
            #[inline]
            fn slot_mut(&mut self) -> &mut $slot {
                let _: usize = ::core::mem::offset_of!($type, $field);
                let slot: *mut $slot = &raw mut self.$field;
                // SAFETY: From a unique reference just now.
                unsafe { &mut *slot }
            }
        }
    };
}
