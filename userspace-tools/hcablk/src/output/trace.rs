// SPDX-License-Identifier: GPL-2.0

//! Recordings and their requests as text.

use std::fmt;

use super::table::table;
use crate::trace::list::table_rows;
use crate::trace::merge::{Machine, MergedRequest};
use crate::trace::text::of_request;

/// Writes a single request, or tables of all.
pub(super) fn write(
    f: &mut fmt::Formatter<'_>,
    machines: &[Machine],
    requests: &[MergedRequest],
    one: bool,
) -> fmt::Result {
    if let (true, [request]) = (one, requests) {
        return f.write_str(&of_request(request));
    }
    let [first, second] = table_rows(machines, requests);
    f.write_str(&table(&first, |column| (1..4).contains(&column)))?;
    f.write_str("\n")?;
    let is_right = |column| matches!(column, 0 | 3 | 4 | 6 | 8..);
    f.write_str(&table(&second, is_right))
}
