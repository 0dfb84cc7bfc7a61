// SPDX-License-Identifier: GPL-2.0

//! Suite `hcablk_configfs`: registering a tree (`configfs`), and a tree for
//! `tests/kselftest/kunit/layers.sh`, which uses it as users do.
//!
//! ```text
//! /sys/kernel/config/hcablk_kunit/
//!   removed              the number of removed directories
//!   pin                  write: refused, the root is never removed
//!   texts/               a default group
//!     full  long  line   as much as fits; more, in lines; more, in one line
//!     fails              an error, read and written
//!     pin                write: refused, as for the root
//!   NAME/                by mkdir; not "bad", and "halfway" fails after its data was created
//!     a00 … a37          with the other two the largest number of attributes
//!     echo               the text that was written
//!     pin                1 blocks rmdir, 0 does not
//!     inner/             a default group of it
//! ```

use crate::check::every_allocation;
use hcablk_core::configfs::{
    Attribute,
    DefaultGroups,
    Directory,
    DirectoryPin,
    NoChild,
    Node,
    Output,
    Subsystem,
    MAX_ATTRIBUTES, //
};
use kernel::{
    new_mutex,
    prelude::*,
    sync::{
        atomic::{
            Atomic,
            Relaxed, //
        },
        Arc,
        Mutex, //
    }, //
};

/// Registers the tree, which exists until the returned object is dropped.
pub(crate) fn tree() -> Result<Subsystem> {
    let root = Arc::new(
        Root {
            removed: Atomic::new(0),
        },
        GFP_KERNEL,
    )?;
    Subsystem::register(c"hcablk_kunit", root, crate::this_module()?)
}

struct Root {
    removed: Atomic<u32>,
}

impl Node for Root {
    const ATTRIBUTES: &'static [Attribute<Self>] = &[
        Attribute::read_only(c"removed", show_removed),
        Attribute::read_write(c"pin", show_nothing, pin_and_let_go),
    ];
    type Child = Item;

    fn make_child(this: &Arc<Self>, name: &str) -> Result<Arc<Item>> {
        if name == "bad" {
            return Err(ENOSPC);
        }
        Arc::pin_init(
            pin_init!(Item {
                root: this.clone(),
                halfway: name == "halfway",
                text <- new_mutex!(KVec::new()),
                pin <- new_mutex!(None),
            }),
            GFP_KERNEL,
        )
    }

    fn default_groups(_this: &Arc<Self>, groups: &mut DefaultGroups) -> Result {
        groups.add(c"texts", Arc::new(Texts, GFP_KERNEL)?)
    }
}

fn show_removed(this: &Root, out: &mut Output<'_>) -> Result {
    writeln!(out, "{}", this.removed.load(Relaxed))
}

fn show_nothing<T>(_this: &T, _out: &mut Output<'_>) -> Result {
    Ok(())
}

fn pin_and_let_go<T>(_this: &Arc<T>, directory: &Directory<'_>, _text: &str) -> Result {
    directory.pin().map(drop)
}

struct Texts;

impl Node for Texts {
    const ATTRIBUTES: &'static [Attribute<Self>] = &[
        Attribute::read_only(c"full", |_, out| lines(out, 64)),
        Attribute::read_only(c"long", |_, out| lines(out, 65)),
        Attribute::read_only(c"line", |_, out| {
            for _ in 0..100 {
                out.write_bytes(&[b'y'; 50]);
            }
            Ok(())
        }),
        Attribute::read_write(c"fails", |_, _| Err(ENODEV), |_, _, _| Err(ERANGE)),
        Attribute::read_write(c"pin", show_nothing, pin_and_let_go),
    ];
    type Child = NoChild;
}

/// Writes lines of 64 bytes.
fn lines(out: &mut Output<'_>, count: u32) -> Result {
    for line in 0..count {
        writeln!(out, "{line:063}")?;
    }
    Ok(())
}

#[pin_data]
struct Item {
    root: Arc<Root>,
    /// Creating its default groups fails.
    halfway: bool,
    #[pin]
    text: Mutex<KVec<u8>>,
    #[pin]
    pin: Mutex<Option<DirectoryPin>>,
}

/// Attributes that return their own number.
macro_rules! places {
    ($($name:literal = $place:literal)*) => {
        &[
            $(Attribute::read_only($name, show_place::<$place>),)*
            Attribute::read_write(c"echo", show_text, store_text),
            Attribute::read_write(c"pin", show_pin, store_pin),
        ]
    };
}

impl Node for Item {
    const ATTRIBUTES: &'static [Attribute<Self>] = places!(
        c"a00" = 0 c"a01" = 1 c"a02" = 2 c"a03" = 3 c"a04" = 4 c"a05" = 5 c"a06" = 6 c"a07" = 7
        c"a08" = 8 c"a09" = 9 c"a10" = 10 c"a11" = 11 c"a12" = 12 c"a13" = 13 c"a14" = 14
        c"a15" = 15 c"a16" = 16 c"a17" = 17 c"a18" = 18 c"a19" = 19 c"a20" = 20 c"a21" = 21
        c"a22" = 22 c"a23" = 23 c"a24" = 24 c"a25" = 25 c"a26" = 26 c"a27" = 27 c"a28" = 28
        c"a29" = 29 c"a30" = 30 c"a31" = 31 c"a32" = 32 c"a33" = 33 c"a34" = 34 c"a35" = 35
        c"a36" = 36 c"a37" = 37
    );
    type Child = NoChild;

    fn default_groups(this: &Arc<Self>, groups: &mut DefaultGroups) -> Result {
        groups.add(c"inner", Arc::new(Texts, GFP_KERNEL)?)?;
        match this.halfway {
            true => Err(ENOSPC),
            false => Ok(()),
        }
    }

    fn removed(&self) {
        self.root.removed.fetch_add(1, Relaxed);
    }
}

const _: () = assert!(Item::ATTRIBUTES.len() == MAX_ATTRIBUTES);

fn show_place<const PLACE: u32>(_this: &Item, out: &mut Output<'_>) -> Result {
    writeln!(out, "{PLACE}")
}

fn show_text(this: &Item, out: &mut Output<'_>) -> Result {
    out.write_bytes(b"[");
    out.write_bytes(&this.text.lock());
    out.write_bytes(b"]\n");
    Ok(())
}

fn store_text(this: &Arc<Item>, _directory: &Directory<'_>, text: &str) -> Result {
    let mut own = KVec::new();
    own.extend_from_slice(text.as_bytes(), GFP_KERNEL)?;
    *this.text.lock() = own;
    Ok(())
}

fn show_pin(this: &Item, out: &mut Output<'_>) -> Result {
    writeln!(out, "{}", u8::from(this.pin.lock().is_some()))
}

fn store_pin(this: &Arc<Item>, directory: &Directory<'_>, text: &str) -> Result {
    let pin = match text {
        "0" => None,
        _ => Some(directory.pin()?),
    };
    *this.pin.lock() = pin;
    Ok(())
}

/// A root with two default groups, the second of which may fail.
struct Twins {
    first: Arc<Texts>,
    second: Arc<Texts>,
    fails: bool,
}

impl Twins {
    fn new(fails: bool) -> Result<Arc<Self>> {
        let twins = Self {
            first: Arc::new(Texts, GFP_KERNEL)?,
            second: Arc::new(Texts, GFP_KERNEL)?,
            fails,
        };
        Ok(Arc::new(twins, GFP_KERNEL)?)
    }

    /// Returns whether no other reference to any part is left.
    fn is_alone(this: Arc<Self>) -> bool {
        let (first, second) = (this.first.clone(), this.second.clone());
        Arc::into_unique_or_drop(this).map(drop).is_some()
            && Arc::into_unique_or_drop(first).is_some()
            && Arc::into_unique_or_drop(second).is_some()
    }
}

impl Node for Twins {
    const ATTRIBUTES: &'static [Attribute<Self>] =
        &[Attribute::read_only(c"nothing", show_nothing)];
    type Child = NoChild;

    fn default_groups(this: &Arc<Self>, groups: &mut DefaultGroups) -> Result {
        groups.add(c"first", this.first.clone())?;
        groups.add(c"second", this.second.clone())?;
        if this.fails {
            return Err(ENOSPC);
        }
        Ok(())
    }
}

#[kunit_tests(hcablk_configfs)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_lets_go_of_all_its_data() -> Result {
        let twins = Twins::new(false)?;
        let tree = Subsystem::register(c"hcablk_kunit1", twins.clone(), crate::this_module()?)?;
        drop(tree);
        ensure!(Twins::is_alone(twins));
        Ok(())
    }

    #[test]
    fn a_name_is_taken_once() -> Result {
        let (one, two) = (Twins::new(false)?, Twins::new(false)?);
        let tree = Subsystem::register(c"hcablk_kunit1", one.clone(), crate::this_module()?)?;
        let again = Subsystem::register(c"hcablk_kunit1", two.clone(), crate::this_module()?);
        ensure_eq!(again.err(), Some(EEXIST));
        ensure!(Twins::is_alone(two));
        drop(tree);
        ensure!(Twins::is_alone(one));
        let three = Twins::new(false)?;
        Subsystem::register(c"hcablk_kunit1", three, crate::this_module()?).map(drop)
    }

    #[test]
    fn a_tree_with_a_group_that_fails_is_not_shown() -> Result {
        let twins = Twins::new(true)?;
        let tree = Subsystem::register(c"hcablk_kunit1", twins.clone(), crate::this_module()?);
        ensure_eq!(tree.err(), Some(ENOSPC));
        ensure!(Twins::is_alone(twins));
        Ok(())
    }

    #[test]
    fn a_tree_without_memory() -> Result {
        let twins = Twins::new(false)?;
        every_allocation(8, || {
            Subsystem::register(c"hcablk_kunit1", twins.clone(), crate::this_module()?)
        })?;
        ensure!(Twins::is_alone(twins));
        Ok(())
    }
}
