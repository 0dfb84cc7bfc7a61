// SPDX-License-Identifier: GPL-2.0

//! Lists with the columns that the user has chosen. A column is a member of the JSON that is one value, or a list of
//! values.

use serde::Serialize;
use serde_json::Value;

use super::table::table;

/// The columns of disks.
pub const DISKS: [&str; 31] = [
    "name",
    "kind",
    "device",
    "state",
    "address",
    "port",
    "volume",
    "host_id",
    "wwid",
    "size_bytes",
    "queues",
    "poll_queues",
    "queue_depth",
    "io_timeout",
    "connect_timeout",
    "reconnect_delay",
    "ctrl_loss_tmo",
    "fast_io_fail_tmo",
    "keep_alive_tmo",
    "remote_invalidate",
    "small_read",
    "small_write",
    "eager_write",
    "max_io_kib",
    "message_requests",
    "batch_upper",
    "batch_lower",
    "policy",
    "paths_auto",
    "lost_writes",
    "error",
];

/// The columns of volumes.
pub const VOLUMES: [&str; 14] = [
    "name",
    "path",
    "enabled",
    "read_only",
    "insecure",
    "mode",
    "write_cache",
    "keep_reservations",
    "cache_mib",
    "chunk_kib",
    "wwid",
    "size_bytes",
    "hosts",
    "error",
];

/// Returns a cell, which is never empty, so that programs can split the line.
fn cell(value: &Value) -> String {
    let text = match value {
        Value::Null => String::new(),
        Value::Bool(true) => "yes".to_owned(),
        Value::Bool(false) => "no".to_owned(),
        Value::String(text) => text.clone(),
        Value::Array(values) => values.iter().map(cell).collect::<Vec<_>>().join(","),
        other => other.to_string(),
    };
    if text.is_empty() {
        "-".to_owned()
    } else {
        text
    }
}

/// Makes a table with a row for each object, and these columns in this order.
pub(super) fn of<T: Serialize>(objects: &[T], columns: &[String]) -> String {
    let mut rows = vec![columns.iter().map(|name| name.to_uppercase()).collect()];
    let mut are_numbers = vec![true; columns.len()];
    for object in objects {
        // Each entry of a list is an object in JSON.
        let object = serde_json::to_value(object).unwrap_or_default();
        for (name, are_numbers) in columns.iter().zip(&mut are_numbers) {
            *are_numbers &= object[name].is_number() || object[name].is_null();
        }
        rows.push(columns.iter().map(|name| cell(&object[name])).collect());
    }
    table(&rows, |column| are_numbers[column])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_are_never_empty() {
        let objects = [
            serde_json::json!({"a": "x", "n": 10, "l": ["p", "q"], "b": true, "e": null}),
            serde_json::json!({"a": "", "n": 5, "l": [], "b": false, "e": "why not"}),
        ];
        let columns = ["n", "a", "l", "b", "e"].map(str::to_owned);
        assert_eq!(
            of(&objects, &columns),
            " N  A  L    B    E\n10  x  p,q  yes  -\n 5  -  -    no   why not\n"
        );
    }
}
