//! The documents of the project: their links, their terminal blocks, and the page of commands.

#![allow(clippy::expect_used, clippy::panic)]

mod commands;
mod links;
mod terminal;

use std::path::{Path, PathBuf};

/// Returns the directory of the project.
fn project() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the crate is in the project").to_owned()
}

/// Returns the pages that people read: all Markdown files at the top, in `docs`, and next to tests
/// and benches.
fn pages() -> Vec<PathBuf> {
    let project = project();
    let mut pages = vec![project.join("tests/README.md"), project.join("benches/README.md")];
    let mut directories = vec![project.join("docs")];
    pages.extend(entries(&project).into_iter().filter(|path| is_markdown(path)));
    while let Some(directory) = directories.pop() {
        for path in entries(&directory) {
            match path.is_dir() {
                true => directories.push(path),
                false if is_markdown(&path) => pages.push(path),
                false => {}
            }
        }
    }
    pages.sort();
    assert!(pages.len() > 20, "{pages:?}");
    pages
}

fn entries(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).expect("a directory of documents can be listed");
    entries.map(|entry| entry.expect("an entry can be read").path()).collect()
}

fn is_markdown(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "md")
}

fn read(page: &Path) -> String {
    std::fs::read_to_string(page).unwrap_or_else(|error| panic!("{}: {error}", page.display()))
}

/// Lines of a page, with whether each is in a fenced block, and the fence's word.
fn lines(text: &str) -> impl Iterator<Item = (usize, &str, Option<&str>)> {
    let mut fence: Option<(usize, &str)> = None;
    (1..).zip(text.lines()).map(move |(number, line)| {
        let start = line.trim_start();
        let ticks = start.len() - start.trim_start_matches('`').len();
        match fence {
            Some((opening, word)) if ticks >= opening && start.trim_matches('`').trim().is_empty() => {
                fence = None;
                (number, line, Some(word))
            }
            Some((_, word)) => (number, line, Some(word)),
            None if ticks >= 3 => {
                let word = start.trim_start_matches('`').trim();
                fence = Some((ticks, word));
                (number, line, Some(word))
            }
            None => (number, line, None),
        }
    })
}
