// SPDX-License-Identifier: GPL-2.0

//! Changes the text of a file of the configuration: only the values that differ. Everything else stays, comments
//! included, except that a comment after a removed value in its line is removed, too.

use toml::Table;
use toml_edit::{Array, DocumentMut, Item, RawString, TableLike, Value};
use uuid::Uuid;

/// Changes the table `[section.name]` of a file from `old` to `new`, or adds it; returns the new text of the file.
pub(super) fn edit(
    text: &str,
    section: &str,
    name: &str,
    old: Option<&Table>,
    new: &Table,
) -> Result<String, String> {
    let mut file: DocumentMut = text.parse().map_err(|error| format!("{error}"))?;
    let known = file.get(section);
    let is_inline = known.is_some_and(Item::is_inline_table);
    let has_it = known
        .and_then(Item::as_table_like)
        .is_some_and(|sections| sections.contains_key(name));
    if !has_it && !is_inline && !text.trim().is_empty() {
        // Only at the end of the file does no comment change its table: to the parser, a key that is commented out at
        // the end of a table belongs to the next table.
        let table = edit("", section, name, old, new)?;
        return Ok(format!("{}\n\n{table}", text.trim_end()));
    }
    let sections = file.entry(section).or_insert_with(|| {
        let mut table = toml_edit::Table::new();
        table.set_implicit(true);
        Item::Table(table)
    });
    let sections = sections
        .as_table_like_mut()
        .ok_or_else(|| format!("{section} is not a table"))?;
    if let Some(table) = sections.get_mut(name) {
        let table = table
            .as_table_like_mut()
            .ok_or_else(|| format!("{section}.{name} is not a table"))?;
        change(table, old.unwrap_or(&Table::new()), new)?;
        return Ok(file.to_string());
    }
    let mut table = toml_edit::Table::new();
    change(&mut table, &Table::new(), new)?;
    let item = if is_inline {
        Item::Value(table.into_inline_table().into())
    } else {
        Item::Table(table)
    };
    sections.insert(name, item);
    Ok(file.to_string())
}

/// Changes the keys of the table `[section]` of a file from `old` to `new`, or adds the table; returns the new text of
/// the file.
pub(super) fn edit_table(
    text: &str,
    section: &str,
    old: &Table,
    new: &Table,
) -> Result<String, String> {
    let mut file: DocumentMut = text.parse().map_err(|error| format!("{error}"))?;
    if let Some(table) = file.get_mut(section) {
        let table = table
            .as_table_like_mut()
            .ok_or_else(|| format!("{section} is not a table"))?;
        change(table, old, new)?;
        return Ok(file.to_string());
    }
    let mut table = toml_edit::Table::new();
    change(&mut table, &Table::new(), new)?;
    let mut added = DocumentMut::new();
    added.insert(section, Item::Table(table));
    if text.trim().is_empty() {
        return Ok(added.to_string());
    }
    Ok(format!("{}\n\n{added}", text.trim_end()))
}

/// Changes the keys that differ between `old` and `new`. A key that is in neither has its default, and stays.
fn change(table: &mut dyn TableLike, old: &Table, new: &Table) -> Result<(), String> {
    for key in old.keys().filter(|key| !new.contains_key(*key)) {
        remove(table, key);
    }
    for (key, value) in new
        .iter()
        .filter(|(key, value)| old.get(*key) != Some(value))
    {
        let known = table.get_mut(key).and_then(Item::as_table_like_mut);
        if let (Some(known), toml::Value::Table(value)) = (known, value) {
            let old = old.get(key).and_then(toml::Value::as_table);
            change(known, old.unwrap_or(&Table::new()), value)?;
            continue;
        }
        let value: Value = value
            .to_string()
            .parse()
            .map_err(|error| format!("{key}: {error}"))?;
        match (table.get_mut(key).and_then(Item::as_value_mut), value) {
            (Some(Value::Array(known)), Value::Array(value)) => change_array(known, &value),
            // The comment after the value stays.
            (Some(known), value) => {
                let decor = known.decor().clone();
                *known = value;
                *known.decor_mut() = decor;
            }
            (None, value) => drop(table.insert(key, Item::Value(value))),
        }
    }
    Ok(())
}

/// Removes a key. The comments above it stay: one may be a key that is commented out.
fn remove(table: &mut dyn TableLike, key: &str) {
    let text = |raw: Option<&RawString>| raw.and_then(RawString::as_str).unwrap_or("").to_owned();
    let values = table.iter().filter(|(_, item)| item.is_value());
    let keys: Vec<_> = values.map(|(key, _)| key.to_owned()).collect();
    let at = keys.iter().position(|known| known == key);
    let above = table.key(key).map(|key| text(key.leaf_decor().prefix()));
    table.remove(key);
    let (Some(at), Some(above)) = (at, above.filter(|above| above.contains('#'))) else {
        return;
    };
    if let Some(mut next) = keys.get(at + 1).and_then(|next| table.key_mut(next)) {
        let decor = next.leaf_decor_mut();
        decor.set_prefix(above + &text(decor.prefix()));
        return;
    }
    let previous = at.checked_sub(1).and_then(|at| keys.get(at));
    let previous = previous.and_then(|key| table.get_mut(key)?.as_value_mut());
    if let Some(previous) = previous {
        let decor = previous.decor_mut();
        let suffix = text(decor.suffix());
        decor.set_suffix(format!("{suffix}\n{}", above.trim_end()));
    }
}

/// An element of an array, with the text around it.
struct Element {
    /// The text from the end of the previous element's line up to this element.
    before: String,
    value: Value,
    /// The text after the comma, up to the end of the line: a comment there is about this element.
    after: String,
}

/// Returns whether two elements mean the same.
fn is_same(a: &Value, b: &Value) -> bool {
    let (Some(a), Some(b)) = (a.as_str(), b.as_str()) else {
        return false;
    };
    match (Uuid::try_parse(a), Uuid::try_parse(b)) {
        (Ok(a), Ok(b)) => a == b,
        _ => a == b,
    }
}

/// Appends a text; begins a new line if `text` has a comment, which would include it.
fn append(text: &mut String, more: &str) {
    if text.contains('#') && !more.starts_with('\n') {
        text.push('\n');
    }
    text.push_str(more);
}

/// Removes the elements that are not in `new`, with their comments, and adds those that are only in `new`. The others
/// stay as they are.
fn change_array(array: &mut Array, new: &Array) {
    let text = |raw: Option<&RawString>| raw.and_then(RawString::as_str).unwrap_or("").to_owned();
    let mut gaps: Vec<_> = array
        .iter()
        .map(|value| text(value.decor().prefix()))
        .collect();
    let mut values: Vec<Value> = array.iter().cloned().collect();
    let mut end = text(Some(array.trailing()));
    if let (false, Some(last)) = (array.trailing_comma(), values.last_mut()) {
        end.insert_str(0, &text(last.decor().suffix()));
        last.decor_mut().set_suffix("");
    }
    gaps.push(end);
    let is_long = gaps.iter().any(|gap| gap.contains('\n'));
    // The parser stores the text between two elements with the second one.
    let mut halves = gaps
        .iter()
        .map(|gap| gap.split_at(gap.find('\n').unwrap_or(0)));
    let (open, mut before) = halves.next().unwrap_or_default();
    let first = before;
    let mut elements = Vec::new();
    for (value, (after, next)) in values.into_iter().zip(halves) {
        elements.push(Element {
            before: before.to_owned(),
            value,
            after: after.to_owned(),
        });
        before = next;
    }
    let close = before;
    let indent = elements.last().and_then(|last| {
        let line = last.before.rfind('\n')?;
        Some(last.before[line..].to_owned())
    });
    let added = new
        .iter()
        .filter(|one| !elements.iter().any(|known| is_same(&known.value, one)));
    let added: Vec<_> = added.cloned().collect();
    elements.retain(|known| new.iter().any(|one| is_same(&known.value, one)));
    for value in added {
        let before = match (is_long, &indent) {
            (true, Some(indent)) => indent.clone(),
            (true, None) => "\n    ".to_owned(),
            (false, _) => " ".to_owned(),
        };
        elements.push(Element {
            before,
            value,
            after: String::new(),
        });
    }
    let was_empty = gaps.len() == 1;
    if let Some(element) = elements.first_mut().filter(|_| !is_long) {
        element.before = String::from(if was_empty { "" } else { first });
    }
    let mut changed = Array::new();
    *changed.decor_mut() = array.decor().clone();
    let mut pending = open.to_owned();
    for Element {
        before,
        mut value,
        after,
    } in elements
    {
        append(&mut pending, &before);
        value
            .decor_mut()
            .set_prefix(std::mem::replace(&mut pending, after));
        changed.push_formatted(value);
    }
    append(&mut pending, close);
    changed.set_trailing_comma(is_long && !changed.is_empty());
    changed.set_trailing(pending);
    *array = changed;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(text: &str) -> Table {
        text.parse().unwrap()
    }

    #[test]
    fn a_new_table_is_added_and_the_rest_stays() {
        let text = "# mine\n[host]\nid = \"x\" # this\n\n[disk.a] # first\naddress = \"h\"\n";
        let new = table("address = \"10.0.0.1\"\npaths = { 1 = \"10.0.1.1:7744\" }");
        let after = edit(text, "disk", "b", None, &new).unwrap();
        assert_eq!(
            after,
            format!(
                "{text}\n[disk.b]\naddress = \"10.0.0.1\"\npaths = {{ 1 = \"10.0.1.1:7744\" }}\n"
            )
        );
        assert_eq!(
            edit("", "disk", "b", None, &table("address = \"h\"")).unwrap(),
            "[disk.b]\naddress = \"h\"\n"
        );
        assert_eq!(
            edit("# mine\n", "disk", "b", None, &table("address = \"h\"")).unwrap(),
            "# mine\n\n[disk.b]\naddress = \"h\"\n"
        );
    }

    #[test]
    fn only_keys_that_differ_are_changed() {
        let text = "[disk.a] # first\n# the address\naddress = \"h\" # old\nqueue_depth = 128 # the default\nqueues = 4\nport = 7745\n[host]\n";
        let old = table("address = \"h\"\nqueues = 4\nport = 7745");
        let new = table("address = \"i\"\nport = 7745\nctrl_loss_tmo = \"never\"");
        assert_eq!(
            edit(text, "disk", "a", Some(&old), &new).unwrap(),
            "[disk.a] # first\n# the address\naddress = \"i\" # old\nqueue_depth = 128 # the default\nport = 7745\nctrl_loss_tmo = \"never\"\n[host]\n"
        );
    }

    #[test]
    fn a_separate_table_is_changed_or_added() {
        let (old, new) = (table("a = \"x\""), table("a = \"x\"\nb = \"y\""));
        for (text, after) in [
            ("", "[names]\na = \"x\"\nb = \"y\"\n"),
            ("# mine\n", "# mine\n\n[names]\na = \"x\"\nb = \"y\"\n"),
        ] {
            assert_eq!(
                edit_table(text, "names", &Table::new(), &new).unwrap(),
                after
            );
        }
        let text = "[names] # all\na = \"x\" # rack 7\n[host]\n";
        assert_eq!(
            edit_table(text, "names", &old, &new).unwrap(),
            "[names] # all\na = \"x\" # rack 7\nb = \"y\"\n[host]\n"
        );
    }

    #[test]
    fn tables_within_a_line_and_dotted_keys_are_changed() {
        let (old, new) = (table("address = \"h\""), table("address = \"i\""));
        for (text, after) in [
            (
                "disk = { a = { address = \"h\" } }\n",
                "disk = { a = { address = \"i\" } }\n",
            ),
            ("disk.a.address = \"h\"\n", "disk.a.address = \"i\"\n"),
        ] {
            let edited = edit(text, "disk", "a", Some(&old), &new).unwrap();
            assert_eq!(edited, after);
        }
        let edited = edit(
            "disk = { a = { address = \"h\" } }\n",
            "disk",
            "b",
            None,
            &new,
        );
        let edited: Table = edited.unwrap().parse().unwrap();
        assert_eq!(edited["disk"]["b"]["address"].as_str(), Some("i"));
        assert_eq!(edited["disk"]["a"]["address"].as_str(), Some("h"));
    }

    /// Changes `allow` of a table in `text` to these values.
    fn allowing(text: &str, old: &[&str], new: &[&str]) -> String {
        let table = |ids: &[&str]| table(&format!("allow = {ids:?}"));
        edit(text, "export", "a", Some(&table(old)), &table(new)).unwrap()
    }

    #[test]
    fn elements_that_stay_keep_their_comments() {
        let text = "[export.a]\nallow = [ # hosts\n  \"x\", # client1\n  # in rack 2\n  \"y\", # client2\n  \"z\" # client3\n  # no more\n] # end\n";
        assert_eq!(
            allowing(text, &["x", "y", "z"], &["w", "x", "z"]),
            "[export.a]\nallow = [ # hosts\n  \"x\", # client1\n  \"z\", # client3\n  \"w\",\n  # no more\n] # end\n"
        );
        assert_eq!(
            allowing(text, &["x", "y", "z"], &["y"]),
            "[export.a]\nallow = [ # hosts\n  # in rack 2\n  \"y\", # client2\n  # no more\n] # end\n"
        );
        assert_eq!(
            allowing(text, &["x", "y", "z"], &[]),
            "[export.a]\nallow = [ # hosts\n  # no more\n] # end\n"
        );
    }

    #[test]
    fn arrays_in_a_line_stay_in_it() {
        for (array, old, new, after) in [
            (
                "[\"x\", \"y\"]",
                &["x", "y"][..],
                &["y", "z"][..],
                "[\"y\", \"z\"]",
            ),
            ("[ \"x\", \"y\" ]", &["x", "y"], &["y"], "[ \"y\" ]"),
            ("[]", &[], &["x", "y"], "[\"x\", \"y\"]"),
            ("[\n]", &[], &["x"], "[\n    \"x\",\n]"),
            ("[\"x\", # 1\n\"y\"]", &["x", "y"], &["x"], "[\"x\", # 1\n]"),
        ] {
            let text = |array: &str| format!("[export.a]\nallow = {array} # all\n");
            assert_eq!(allowing(&text(array), old, new), text(after), "{array}");
        }
    }

    #[test]
    fn ids_are_compared_by_meaning() {
        let id = "5f2c1d6e-8a0b-4c3d-9e7f-001122334455";
        let text = |more| format!("[export.a]\nallow = [\"{}\"{more}]\n", id.to_uppercase());
        assert_eq!(allowing(&text(""), &[id], &[id, "y"]), text(", \"y\""));
    }

    #[test]
    fn paths_that_stay_keep_their_comments() {
        let text = "[disk.a]\naddress = \"h\"\n\n[disk.a.paths] # both\n1 = \"i\" # rack 1\n2 = \"j\" # rack 2\n";
        let old = table("address = \"h\"\npaths = { 1 = \"i:7744\", 2 = \"j:7744\" }");
        let new = table("address = \"h\"\npaths = { 1 = \"i:7744\", 3 = \"k:7744\" }");
        assert_eq!(
            edit(text, "disk", "a", Some(&old), &new).unwrap(),
            "[disk.a]\naddress = \"h\"\n\n[disk.a.paths] # both\n1 = \"i\" # rack 1\n3 = \"k:7744\"\n"
        );
    }

    #[test]
    fn a_commented_out_key_stays_in_its_table() {
        for text in [
            "[disk.a]\naddress = \"h\"\n# queues = 4\n",
            "[disk.a]\naddress = \"h\"\n# queues = 4\n\n[export.v]\ndevice = \"/dev/sdb\"\n",
            "disk.a.address = \"h\"\n# disk.a.queues = 4\n\n[export.v]\ndevice = \"/dev/sdb\"\n",
        ] {
            let after = edit(text, "disk", "b", None, &table("address = \"i\"")).unwrap();
            assert_eq!(after, format!("{text}\n[disk.b]\naddress = \"i\"\n"));
            after.parse::<Table>().unwrap();
        }
    }

    #[test]
    fn comments_above_a_key_that_is_removed_stay() {
        let old = table("address = \"h\"\nqueues = 4");
        let new = table("address = \"h\"");
        for (text, after) in [
            // The comments move to the next key,
            (
                "[disk.a]\n# port = 1\nqueues = 4 # gone\n# the target\naddress = \"h\"\n",
                "[disk.a]\n# port = 1\n# the target\naddress = \"h\"\n",
            ),
            // or else after the previous key.
            (
                "[disk.a]\naddress = \"h\" # rack 7\n\n# port = 1\nqueues = 4\n\n[host]\n",
                "[disk.a]\naddress = \"h\" # rack 7\n\n# port = 1\n\n[host]\n",
            ),
        ] {
            assert_eq!(edit(text, "disk", "a", Some(&old), &new).unwrap(), after);
        }
    }
}
