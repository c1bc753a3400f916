//! Reports of tests that cannot run on this machine.

use std::fmt::Display;
use std::fs::OpenOptions;
use std::io::Write;

/// Names the file to which a line is added for each test that is skipped.
const FILE: &str = "FOLDLOG_SKIPPED";

/// Reports why the test that runs in this thread is skipped. The gate counts the reports, by `FOLDLOG_SKIPPED`.
///
/// # Panics
///
/// If the file cannot be written.
pub fn skipped(reason: impl Display) {
    println!("skipped: {reason}");
    let Some(path) = std::env::var_os(FILE) else { return };
    let thread = std::thread::current();
    let line = format!("{}: {reason}\n", thread.name().unwrap_or("a test"));
    let file = OpenOptions::new().create(true).append(true).open(path);
    file.and_then(|mut file| file.write_all(line.as_bytes())).expect("the file of skipped tests is written");
}
