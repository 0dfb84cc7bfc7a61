// SPDX-License-Identifier: GPL-2.0

//! The persistent configuration: `/etc/hcablk/hcablk.toml` and `/etc/hcablk/hcablk.d/*.toml`.
//!
//! | module | holds |
//! |---|---|
//! | [`schema`] | the tables and keys, their values and defaults |
//! | [`paths`] | the paths of a disk |
//! | [`value`] | numbers, times and sizes, as the files and as configfs have them |
//! | [`files`] | finding and reading the files, and reporting mistakes with their place |
//! | [`loaded`] | the configuration that was read, and the place of each table |
//! | [`check`] | keys that contradict each other |
//! | [`running`] | the kernel's state, as a configuration |
//! | [`commands`] | `hcablk config …` |
//! | `lock` | the lock on the configuration |
//! | `persist` | writing what a command has made into the files |
//! | `edit` | changing the text of a file, and only what differs |

pub mod check;
pub mod commands;
mod edit;
pub mod files;
pub mod loaded;
mod lock;
pub mod paths;
pub(crate) mod persist;
pub mod running;
pub mod schema;
pub mod value;

pub use files::load;
pub use loaded::{ConfigPlace, MAIN};
pub(crate) use lock::lock;
pub use paths::{DiskPath, Paths};
pub use schema::{Config, Disk, Export, Host, Port};
