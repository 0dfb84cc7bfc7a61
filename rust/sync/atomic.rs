// SPDX-License-Identifier: GPL-2.0

//! The `kernel` crate's `Atomic`, with the same names, as instructions in place of calls.
//!
//! Loads, stores and exchanges of the kernel's type are calls of C functions that are not inlined
//! (`rust/helpers/atomic.c`), unless the kernel is built with `RUST_INLINE_HELPERS`; Debian's are
//! not. The table shows the additional instructions of an I/O of 4 KiB with the kernel's type, in
//! all and in these modules alone (without the called functions), between two of the tests' HCAs
//! behind an IOMMU (`make bench LINK=hca-iommu`, Linux 7.3):
//!
//! | | all | these modules |
//! |---|---|---|
//! | read, depth 1 | 633 | 346 of 2,156 |
//! | read, depth 64 | 394 | 186 of 1,963 |
//! | write, depth 1 | 733 | 423 of 2,335 |
//! | write, depth 64 | 516 | 279 of 1,892 |
//!
//! On x86-64 this type uses `core`'s, whose instructions are the same: a load is an acquire, a
//! store is a release, and a locked instruction is a full barrier, also to the compiler, which
//! moves nothing across a sequentially consistent exchange. There are no functions for the parts in
//! which the memory models differ further (dependencies, separate barriers). On other architectures
//! this is the kernel's type.
//!
//! No C code changes these values, except blk-mq's field of a hardware queue
//! (`blkdev/operations.rs`), which it leaves alone once that has been set up.

#[cfg(not(target_arch = "x86_64"))]
pub use kernel::sync::atomic::{
    Acquire,
    Atomic,
    Full,
    Relaxed,
    Release, //
};

#[cfg(target_arch = "x86_64")]
pub use by_core::*;

#[cfg(target_arch = "x86_64")]
mod by_core {
    use core::{
        cell::UnsafeCell,
        sync::atomic::{
            AtomicBool,
            AtomicI32,
            AtomicPtr,
            AtomicU32,
            AtomicU64,
            AtomicUsize,
            Ordering, //
        },
    };

    /// Orders nothing.
    #[derive(Clone, Copy)]
    pub struct Relaxed;
    /// The load comes before all later accesses.
    #[derive(Clone, Copy)]
    pub struct Acquire;
    /// A context that sees the store sees all earlier accesses.
    #[derive(Clone, Copy)]
    pub struct Release;
    /// All earlier accesses come before all later ones.
    #[derive(Clone, Copy)]
    pub struct Full;

    /// An ordering of loads.
    pub trait OfLoad {
        /// Its name in `core`.
        const ORDERING: Ordering;
    }

    impl OfLoad for Relaxed {
        const ORDERING: Ordering = Ordering::Relaxed;
    }

    impl OfLoad for Acquire {
        const ORDERING: Ordering = Ordering::Acquire;
    }

    /// An ordering of stores.
    pub trait OfStore {
        /// Its name in `core`.
        const ORDERING: Ordering;
    }

    impl OfStore for Relaxed {
        const ORDERING: Ordering = Ordering::Relaxed;
    }

    impl OfStore for Release {
        const ORDERING: Ordering = Ordering::Release;
    }

    /// An ordering of operations that load and store.
    pub trait OfExchange {
        /// Its name in `core`.
        const ORDERING: Ordering;
        /// The ordering of the load alone, if nothing is stored.
        const FAILED: Ordering;
    }

    impl OfExchange for Relaxed {
        const ORDERING: Ordering = Ordering::Relaxed;
        const FAILED: Ordering = Ordering::Relaxed;
    }

    impl OfExchange for Acquire {
        const ORDERING: Ordering = Ordering::Acquire;
        const FAILED: Ordering = Ordering::Relaxed;
    }

    impl OfExchange for Release {
        const ORDERING: Ordering = Ordering::Release;
        const FAILED: Ordering = Ordering::Relaxed;
    }

    impl OfExchange for Full {
        const ORDERING: Ordering = Ordering::SeqCst;
        const FAILED: Ordering = Ordering::SeqCst;
    }

    /// A value of an [`Atomic`].
    ///
    /// # Safety
    ///
    /// [`Self::Cell`] has the size and the alignment of the type, and any of its values is one of
    /// the type.
    pub unsafe trait Value: Copy {
        /// The type of `core`.
        #[doc(hidden)]
        type Cell;

        #[doc(hidden)]
        fn load(cell: &Self::Cell, ordering: Ordering) -> Self;
        #[doc(hidden)]
        fn store(cell: &Self::Cell, value: Self, ordering: Ordering);
        #[doc(hidden)]
        fn xchg(cell: &Self::Cell, value: Self, ordering: Ordering) -> Self;
        #[doc(hidden)]
        fn cmpxchg(
            cell: &Self::Cell,
            old: Self,
            new: Self,
            ordering: Ordering,
            failed: Ordering,
        ) -> Result<Self, Self>;
    }

    /// A [`Value`] that can be added to.
    pub trait Number: Value {
        #[doc(hidden)]
        fn fetch_add(cell: &Self::Cell, value: Self, ordering: Ordering) -> Self;
        #[doc(hidden)]
        fn fetch_sub(cell: &Self::Cell, value: Self, ordering: Ordering) -> Self;
    }

    macro_rules! value {
        ($cell:ty, $value:ty $(, $life:ident)?) => {
            // SAFETY: `core` documents the size, the alignment and the values of its atomic types.
            unsafe impl$(<$life>)? Value for $value {
                type Cell = $cell;

                #[inline(always)]
                fn load(cell: &$cell, ordering: Ordering) -> Self {
                    cell.load(ordering)
                }

                #[inline(always)]
                fn store(cell: &$cell, value: Self, ordering: Ordering) {
                    cell.store(value, ordering);
                }

                #[inline(always)]
                fn xchg(cell: &$cell, value: Self, ordering: Ordering) -> Self {
                    cell.swap(value, ordering)
                }

                #[inline(always)]
                fn cmpxchg(
                    cell: &$cell,
                    old: Self,
                    new: Self,
                    ordering: Ordering,
                    failed: Ordering,
                ) -> Result<Self, Self> {
                    cell.compare_exchange(old, new, ordering, failed)
                }
            }
        };
    }

    macro_rules! number {
        ($cell:ty, $value:ty) => {
            value!($cell, $value);

            impl Number for $value {
                #[inline(always)]
                fn fetch_add(cell: &$cell, value: Self, ordering: Ordering) -> Self {
                    cell.fetch_add(value, ordering)
                }

                #[inline(always)]
                fn fetch_sub(cell: &$cell, value: Self, ordering: Ordering) -> Self {
                    cell.fetch_sub(value, ordering)
                }
            }
        };
    }

    number!(AtomicI32, i32);
    number!(AtomicU32, u32);
    number!(AtomicU64, u64);
    number!(AtomicUsize, usize);
    value!(AtomicBool, bool);
    value!(AtomicPtr<T>, *mut T, T);

    /// A number, flag or pointer that several threads see, as the kernel's.
    #[repr(transparent)]
    pub struct Atomic<T: Value>(UnsafeCell<T>);

    // SAFETY: All accesses are atomic.
    unsafe impl<T: Value> Send for Atomic<T> {}
    // SAFETY: As above.
    unsafe impl<T: Value> Sync for Atomic<T> {}

    impl<T: Value> Atomic<T> {
        /// Creates an atomic with the value `value`.
        pub const fn new(value: T) -> Self {
            Self(UnsafeCell::new(value))
        }

        /// Interprets existing memory as an atomic.
        ///
        /// # Safety
        ///
        /// `ptr` is aligned and valid for `'a`, in which all accesses are atomic.
        #[inline(always)]
        pub unsafe fn from_ptr<'a>(ptr: *mut T) -> &'a Self {
            // SAFETY: By the safety requirement; the layout is the value's.
            unsafe { &*ptr.cast() }
        }

        #[inline(always)]
        fn cell(&self) -> &T::Cell {
            // SAFETY: By the promise of `Value`; all accesses go through cells.
            unsafe { &*self.0.get().cast() }
        }

        /// Returns its value.
        #[inline(always)]
        pub fn load<O: OfLoad>(&self, _: O) -> T {
            T::load(self.cell(), O::ORDERING)
        }

        /// Stores `value`.
        #[inline(always)]
        pub fn store<O: OfStore>(&self, value: T, _: O) {
            T::store(self.cell(), value, O::ORDERING);
        }

        /// Stores `value`, and returns the former value.
        #[inline(always)]
        pub fn xchg<O: OfExchange>(&self, value: T, _: O) -> T {
            T::xchg(self.cell(), value, O::ORDERING)
        }

        /// Changes the value from `old` to `new`; on an error, returns the value that differs from
        /// `old`.
        #[inline(always)]
        pub fn cmpxchg<O: OfExchange>(&self, old: T, new: T, _: O) -> Result<T, T> {
            T::cmpxchg(self.cell(), old, new, O::ORDERING, O::FAILED)
        }
    }

    impl<T: Number> Atomic<T> {
        /// Adds `value`, wrapping around, and returns the former value.
        #[inline(always)]
        pub fn fetch_add<O: OfExchange>(&self, value: T, _: O) -> T {
            T::fetch_add(self.cell(), value, O::ORDERING)
        }

        /// Subtracts `value`, wrapping around, and returns the former value.
        #[inline(always)]
        pub fn fetch_sub<O: OfExchange>(&self, value: T, _: O) -> T {
            T::fetch_sub(self.cell(), value, O::ORDERING)
        }
    }
}
