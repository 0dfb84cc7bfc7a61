// SPDX-License-Identifier: GPL-2.0

//! Runs command lines, and returns what they print.

use std::path::Path;

use super::Kernel;

/// Runs a command line.
pub fn hcablk(kernel: &Kernel, line: &str) -> hcablk::error::Result<hcablk::output::Outcome> {
    use clap::Parser as _;
    let words = ["hcablk"].into_iter().chain(line.split_whitespace());
    let cli =
        hcablk::cli::Cli::try_parse_from(words).unwrap_or_else(|error| panic!("{line}: {error}"));
    let words = line.split_whitespace().map(str::to_owned);
    // A command may run others.
    let outer = kernel.words.replace(words.collect());
    let result = hcablk::run(&cli.command, kernel, &mut |report| {
        kernel.said.borrow_mut().push(report.clone());
        Ok(true)
    });
    kernel.words.replace(outer);
    result
}

/// Runs a command line that succeeds, and returns its output.
pub fn ok(kernel: &Kernel, line: &str) -> String {
    match hcablk(kernel, line) {
        Ok(outcome) => outcome.report.to_string(),
        Err(error) => panic!("{line}: {error:?}"),
    }
}

/// Runs a command line that fails, and returns its error.
pub fn fails(kernel: &Kernel, line: &str) -> hcablk::error::Error {
    match hcablk(kernel, line) {
        Ok(outcome) => panic!("{line}: {outcome:?}"),
        Err(error) => {
            has_the_form(line, &error);
            error
        }
    }
}

/// Checks that a failure has the common form: what failed and why in one sentence, then the advice.
fn has_the_form(line: &str, error: &hcablk::error::Error) {
    let text = error.to_text();
    let message = &error.message;
    assert!(
        !message.is_empty() && !message.ends_with(['.', ' ', ':']),
        "{line}: {text}"
    );
    let first = message.chars().next().unwrap();
    let word = message.split([' ', ':']).next().unwrap();
    assert!(
        !first.is_uppercase() || word.chars().filter(|c| c.is_uppercase()).count() > 1,
        "{line}: {text}"
    );
    assert!(text.starts_with("hcablk: "), "{line}: {text}");
    let advice = error.advice_or_usual();
    assert!(advice.len() > 10, "{line}: {text}");
    assert!(
        text.lines().last().unwrap().starts_with("  "),
        "{line}: {text}"
    );
}

/// Returns the changing operations from number `from` on, each as its kind and the last part of
/// each of its arguments.
pub fn steps(kernel: &Kernel, from: usize) -> Vec<String> {
    kernel.log.borrow()[from..]
        .iter()
        .map(|line| {
            let words: Vec<_> = line.split(' ').collect();
            let last = |word: &str| word.rsplit('/').next().unwrap().to_owned();
            let parts: Vec<_> = words[1..].iter().map(|word| last(word)).collect();
            format!("{} {}", words[0], parts.join(" "))
        })
        .collect()
}

/// Runs a command line that succeeds, and returns its changing operations.
pub fn steps_of(kernel: &Kernel, line: &str) -> Vec<String> {
    let from = kernel.changes();
    ok(kernel, line);
    steps(kernel, from)
}

/// Returns the text of a key, and the digits that the kernel modules get.
pub fn key(byte: u8) -> (String, String) {
    let digits = format!("{byte:02x}").repeat(32);
    let checksum = crc32fast::hash(&[byte; 32]);
    (format!("hcablk-key-1:{digits}-{checksum:08x}\n"), digits)
}

/// The remarks of a command line that succeeds, without those on missing keys, which `key_notes()` returns.
pub fn notes(kernel: &Kernel, line: &str) -> Vec<String> {
    without_keys(hcablk(kernel, line).unwrap().notes)
}

/// The remarks on missing keys of a command line that succeeds.
pub fn key_notes(kernel: &Kernel, line: &str) -> Vec<String> {
    let mut notes = hcablk(kernel, line).unwrap().notes;
    notes.retain(|note| is_about_keys(note));
    notes
}

/// Leaves out the remarks on missing keys.
pub fn without_keys(mut notes: Vec<String>) -> Vec<String> {
    notes.retain(|note| !is_about_keys(note));
    notes
}

fn is_about_keys(note: &str) -> bool {
    note.contains("hcablk key generate target") || note.contains("hcablk key add host")
}

/// Compares with a file in `tests/golden`. With `HCABLK_UPDATE_GOLDEN` set, writes the file
/// instead: look at the difference before you commit it, because programs read the JSON.
pub fn golden(name: &str, text: &str) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/golden")
        .join(name);
    if std::env::var_os("HCABLK_UPDATE_GOLDEN").is_some() {
        std::fs::write(&file, text).unwrap();
    }
    let expected = std::fs::read_to_string(&file).unwrap_or_default();
    assert_eq!(text, expected, "{name}");
}
