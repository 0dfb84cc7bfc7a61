// SPDX-License-Identifier: GPL-2.0

//! Removes keys and passwords from the text of a report.

use crate::keys;

/// The text in place of a secret.
const REMOVED: &str = "[removed]";

/// Replaces everything that may be a key: printed keys, also mistyped ones, and keys as digits, as the kernel reads
/// them.
pub(crate) fn without_keys(text: &str) -> String {
    without_digits(&without_printed(text))
}

/// The beginnings of keys of `NVMe`, for DH-HMAC-CHAP and for TLS.
const FOREIGN: [&str; 2] = ["DHHC-1:", "NVMeTLSkey-1:"];

/// Replaces keys as they are printed, ours and those of `NVMe`.
fn without_printed(text: &str) -> String {
    let is_in_key = |c: char| c.is_ascii_alphanumeric() || c == '-';
    let is_in_foreign = |c: char| c.is_ascii_alphanumeric() || "+/=:".contains(c);
    let text = without_words(text, keys::PREFIX, is_in_key);
    FOREIGN.iter().fold(text, |text, prefix| {
        without_words(&text, prefix, is_in_foreign)
    })
}

/// Replaces each `prefix`, and the characters after it that belong to the key.
fn without_words(text: &str, prefix: &str, is_in_key: impl Fn(char) -> bool) -> String {
    let mut parts = text.split(prefix);
    let mut clean = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        clean.push_str(REMOVED);
        clean.push_str(part.trim_start_matches(&is_in_key));
    }
    clean
}

fn without_digits(text: &str) -> String {
    let mut left = text;
    let mut clean = String::with_capacity(text.len());
    while !left.is_empty() {
        let (other, rest) = split(left, |c| !c.is_ascii_hexdigit());
        let (digits, rest) = split(rest, |c| c.is_ascii_hexdigit());
        clean.push_str(other);
        let is_key = digits.len() >= 2 * keys::LENGTH;
        clean.push_str(if is_key { REMOVED } else { digits });
        left = rest;
    }
    clean
}

/// Splits a text at the first character for which `is_inside` returns `false`.
fn split(text: &str, is_inside: impl Fn(char) -> bool) -> (&str, &str) {
    text.split_at(text.find(|c| !is_inside(c)).unwrap_or(text.len()))
}

/// Replaces the values that a configuration assigns to names of secrets, such as `password = …`.
pub(super) fn without_assigned(text: &str) -> String {
    let in_line = |line| without_values(line, &['=', ':']);
    let mut lines: Vec<String> = text.lines().map(in_line).collect();
    lines.push(String::new());
    lines.join("\n")
}

/// Replaces the rest of a line of a log, or of a table such as fstab, after `password=` and the like.
pub(super) fn without_options(line: &str) -> String {
    without_values(line, &['='])
}

fn without_values(line: &str, assigns: &[char]) -> String {
    for (at, _) in line.match_indices(assigns) {
        let before = line[..at].trim_end().trim_end_matches(['"', '\'']);
        let is_in_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
        let name = before.rsplit(|c| !is_in_name(c)).next();
        if name.is_some_and(is_secret) {
            return format!("{} {REMOVED}", &line[..=at]);
        }
    }
    line.to_owned()
}

/// Returns whether a name is that of a secret. `keys` is not: in configfs it is the number of keys of a group.
pub(super) fn is_secret(name: &str) -> bool {
    let name = name.to_ascii_lowercase().replace('-', "_");
    let is_key = name.trim_end_matches(|c: char| c.is_ascii_digit());
    is_key == "key"
        || is_key.ends_with("_key")
        || ["passw", "passphrase", "secret", "token", "psk"]
            .iter()
            .any(|word| name.contains(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_removed_in_every_form() {
        let digits = "a5".repeat(32);
        for (text, clean) in [
            (
                format!("x hcablk-key-1:{digits}-12345678 y"),
                "x [removed] y",
            ),
            (
                format!("\"hcablk-key-1:{digits}-12345678\""),
                "\"[removed]\"",
            ),
            ("hcablk-key-1:mistyped\n".to_owned(), "[removed]\n"),
            (format!("ahcablk-key-1:{digits}\n"), "a[removed]\n"),
            (
                format!("key={}\n", digits.to_uppercase()),
                "key=[removed]\n",
            ),
            (format!("{digits}{digits}"), "[removed]"),
            (format!("é{digits}é"), "é[removed]é"),
            (
                "nvme connect --dhchap-secret=DHHC-1:00:ia6z/+==: -n x".to_owned(),
                "nvme connect --dhchap-secret=[removed] -n x",
            ),
            ("NVMeTLSkey-1:01:Ab+/=:".to_owned(), "[removed]"),
        ] {
            assert_eq!(without_keys(&text), clean, "{text}");
        }
    }

    #[test]
    fn other_text_stays() {
        for text in [
            "ed50dbf5-f8c6-5399-909b-1584a5e28766 0123456789abcdef0123456789abcdef\n",
            "build-id b1946ac92492d2347c6235b8d2611184b1946ac9\n\n",
            "größe: 1 TiB",
            "",
        ] {
            assert_eq!(without_keys(text), text);
        }
    }

    #[test]
    fn options_with_secrets_are_removed_from_other_lines() {
        for (line, clean) in [
            (
                "//a /b cifs ro,password=x,uid=1 0 0",
                "//a /b cifs ro,password= [removed]",
            ),
            (
                "cannot read the key: no such file",
                "cannot read the key: no such file",
            ),
        ] {
            assert_eq!(without_options(line), clean);
        }
    }

    #[test]
    fn values_of_secrets_are_removed() {
        for (line, clean) in [
            ("password = \"x\"", "password = [removed]"),
            (
                "a = { b = 1, \"api-token\": \"x\" }",
                "a = { b = 1, \"api-token\": [removed]",
            ),
            ("host_key=x", "host_key= [removed]"),
            ("key2 = \"x\"", "key2 = [removed]"),
            ("keys = 2", "keys = 2"),
            ("ö=1", "ö=1"),
            ("öpassword=1", "öpassword= [removed]"),
            (
                "address = \"fd00::1\" # monkey",
                "address = \"fd00::1\" # monkey",
            ),
        ] {
            assert_eq!(without_values(line, &['=', ':']), clean);
        }
    }
}
