//! Reports of tests that cannot run on this machine.

use std::fmt::Display;
use std::fs::OpenOptions;
use std::io::Write;

/// The variable with the file to which each skipped test adds a line.
const FILE: &str = "FOLDLOG_SKIPPED";

/// Reports why the test in this thread is skipped. The gate counts the reports, by
/// `FOLDLOG_SKIPPED`.
pub fn skipped(reason: impl Display) {
    println!("skipped: {reason}");
    let Some(path) = std::env::var_os(FILE) else { return };
    let thread = std::thread::current();
    let line = format!("{}: {reason}\n", thread.name().unwrap_or("a test"));
    let file = OpenOptions::new().create(true).append(true).open(path);
    file.and_then(|mut file| file.write_all(line.as_bytes())).expect("the file of skipped tests is written");
}
