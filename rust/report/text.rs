// SPDX-License-Identifier: GPL-2.0

//! Formatting.

/// Lets the kernel's printing macros, which have a `Display` of their own,
/// print types that implement `core::fmt::Display`.
#[macro_export]
macro_rules! printable {
    ($($type:ty),* $(,)?) => {
        $(
            impl ::kernel::fmt::Display for $type {
                fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
                    ::core::fmt::Display::fmt(self, f)
                }
            }
        )*
    };
}
pub use printable;

printable!(
    crate::proto::name::HostId,
    crate::proto::name::VolumeId,
    crate::proto::name::VolumeName,
);
