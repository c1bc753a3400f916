//! Compares the matches of patterns with an oracle that tries every possibility, and with
//! `globset`.
//!
//! A snapshot records its exclude patterns, and they decide which files a restore removes. Their
//! meaning must not change, so both tests below apply as long as there are recorded patterns.
//! `globset` agrees on a part of the language and not on the rest: [`DIFFERENCES`] lists every
//! known difference.

// The functions below are all tests, or called by nothing else.
#![allow(clippy::unwrap_used)]

use foldlog_filesystem::{Filesystem, InMemoryFilesystem};
use globset::{GlobBuilder, GlobMatcher};
use proptest::prelude::*;
use proptest::sample::select;

/// Description, pattern and path of a difference, our result and then that of `globset`: `None` if
/// it refuses the pattern.
const DIFFERENCES: &[(&str, &str, &str, bool, Option<bool>)] = &[
    ("braces are two characters, and no choice", "{a,b}", "a", false, Some(true)),
    ("braces are two characters, and no choice", "{a,b}", "{a,b}", true, Some(false)),
    ("a brace may stand alone", "a{", "a{", true, None),
    ("`?` is a character, and no byte", "?", "é", true, Some(false)),
    ("`?` is a character, and no byte", "??", "é", false, Some(true)),
    ("a set holds characters, and no bytes", "[é]", "é", true, Some(false)),
    ("a set holds characters, and no bytes", "[!a]", "é", true, Some(false)),
    ("a set never holds `/`", "a[!b]c", "a/c", false, Some(true)),
    ("a set never holds `/`", "a[.-0]c", "a/c", false, Some(true)),
    ("a set ends with the name that it is in", "[a/b]", "a", false, Some(true)),
    ("a set ends with the name that it is in", "[a/b]", "[a/b]", true, Some(false)),
    ("`\\` in a set takes the next character as it is", r"[\]]", "]", true, Some(false)),
    ("a range may hold nothing", "[b-a]", "a", false, None),
    ("a range may hold nothing", "[!b-a]", "a", true, None),
    ("`\\` at the end is itself", r"a\", r"a\", true, None),
];

/// Returns whether a pattern matches a path, by [`Filesystem::glob`].
fn ours(pattern: &str, path: &str) -> bool {
    let files = InMemoryFilesystem::new();
    files.write(path, b"").unwrap();
    files.glob(pattern).unwrap().iter().any(|found| found == path)
}

/// Compiles a pattern with `globset`, with the options that come nearest.
fn theirs(pattern: &str) -> Option<GlobMatcher> {
    let glob = GlobBuilder::new(pattern)
        .literal_separator(true)
        .backslash_escape(true)
        .allow_unclosed_class(true)
        .build();
    glob.ok().map(|glob| glob.compile_matcher())
}

/// Returns whether a pattern matches a path, by trying every expansion of each star.
fn oracle(pattern: &[&str], path: &[&str]) -> bool {
    match (pattern, path) {
        ([], path) => path.is_empty(),
        (["**"], path) => !path.is_empty(),
        (["**", after @ ..], path) => (0..=path.len()).any(|at| oracle(after, &path[at..])),
        ([name, after @ ..], [first, rest @ ..]) => {
            let chars = |text: &str| text.chars().collect::<Vec<_>>();
            oracle_name(&chars(name), &chars(first)) && oracle(after, rest)
        }
        (_, []) => false,
    }
}

fn oracle_name(pattern: &[char], name: &[char]) -> bool {
    match (pattern, name) {
        ([], name) => name.is_empty(),
        (['*', after @ ..], name) => (0..=name.len()).any(|at| oracle_name(after, &name[at..])),
        (['?', after @ ..], [_, rest @ ..]) => oracle_name(after, rest),
        (['[', set @ ..], [first, rest @ ..]) if let Some((holds, after)) = oracle_set(set, *first) => {
            holds && oracle_name(after, rest)
        }
        (['\\', literal, after @ ..], [first, rest @ ..]) => literal == first && oracle_name(after, rest),
        ([literal, after @ ..], [first, rest @ ..]) => literal == first && oracle_name(after, rest),
        (_, []) => false,
    }
}

/// Returns whether a set contains a character, and the rest of the pattern; `None` if the set is
/// never closed.
fn oracle_set(set: &[char], found: char) -> Option<(bool, &[char])> {
    let negated = matches!(set, ['!' | '^', ..]);
    let mut rest = &set[usize::from(negated)..];
    let mut members: Vec<(char, char)> = Vec::new();
    loop {
        let member;
        (member, rest) = match rest {
            [']', after @ ..] if !members.is_empty() => {
                let holds = members.iter().any(|(low, high)| (low..=high).contains(&&found));
                return Some((holds != negated, after));
            }
            ['\\', literal, after @ ..] => (*literal, after),
            [literal, after @ ..] => (*literal, after),
            [] => return None,
        };
        let high;
        (high, rest) = match rest {
            ['-', ']', ..] | ['-'] => (member, rest),
            ['-', '\\', high, after @ ..] => (*high, after),
            ['-', high, after @ ..] => (*high, after),
            _ => (member, rest),
        };
        members.push((member, high));
    }
}

fn names(text: &str) -> Vec<&str> {
    text.split('/').filter(|name| *name != ".").collect()
}

/// Draws texts of one to `most` names, each composed of some of these pieces.
fn texts(pieces: &'static [&'static str], most: usize) -> impl Strategy<Value = String> {
    let name = prop::collection::vec(select(pieces), 1..=4).prop_map(|pieces| pieces.concat());
    // Replaces names that no path may contain, or that glob ignores.
    let name = name.prop_map(|name| match name.as_str() {
        "." | ".." | ".git" => format!("{name}a"),
        _ => name,
    });
    let name = prop_oneof![4 => name, 1 => Just("**".to_owned())];
    prop::collection::vec(name, 1..=most).prop_map(|names| names.join("/"))
}

const PATH_PIECES: &[&str] =
    &["a", "b", "c", "d", "é", "0", ".", "-", "!", "^", "*", "?", "[", "]", "{", "}", ",", "\\"];

/// All elements of a pattern.
const PIECES: &[&str] = &[
    "a", "b", "c", "é", "0", ".", "-", "!", "^", "*", "*", "?", "[", "]", "{", "}", ",", "\\", "[ab]",
    "[!a]", "[^b]", "[a-c]", "[]a]", "[!]a]", "[c-a]", "[a-]", r"[\]a]", r"[\a-\c]", "[a-é]", r"\*", r"\?",
    r"\[", r"\é",
];

/// The elements on which `globset` agrees.
const SHARED_PIECES: &[&str] = &[
    "a", "b", "c", "0", ".", "-", "!", "^", "*", "*", "?", "]", ",", "[ab]", "[a-c]", "[]a]", "[a-]", "[*]",
    "[?b]", r"\*", r"\?", r"\[", r"\a", r"\\", r"\{",
];

const ASCII_PATH_PIECES: &[&str] =
    &["a", "b", "c", "d", "0", ".", "-", "!", "^", "*", "?", "[", "]", ",", "\\"];

/// Makes a filesystem with these files, unless one blocks another, and returns it with all its
/// paths.
fn files(paths: &[String]) -> (InMemoryFilesystem, Vec<String>) {
    let files = InMemoryFilesystem::new();
    for path in paths {
        let _ = files.write(path, b"");
    }
    let all = files.glob("**").unwrap();
    (files, all)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4096))]

    #[test]
    fn a_pattern_matches_what_an_oracle_says_that_tries_everything(
        pattern in texts(PIECES, 4),
        paths in prop::collection::vec(texts(PATH_PIECES, 4), 1..8),
    ) {
        let (files, all) = files(&paths);
        let pattern_names = names(&pattern);
        let expected: Vec<String> =
            all.into_iter().filter(|path| oracle(&pattern_names, &names(path))).collect();
        prop_assert_eq!(files.glob(&pattern).unwrap(), expected);
    }

    #[test]
    fn globset_agrees_on_stars_ascii_and_sets_that_hold_no_separator(
        pattern in texts(SHARED_PIECES, 4),
        paths in prop::collection::vec(texts(ASCII_PATH_PIECES, 4), 1..8),
    ) {
        let (files, all) = files(&paths);
        let theirs = theirs(&pattern).unwrap();
        let expected: Vec<String> = all.into_iter().filter(|path| theirs.is_match(path)).collect();
        prop_assert_eq!(files.glob(&pattern).unwrap(), expected);
    }
}

#[test]
fn globset_differs_where_it_is_known_to() {
    for (what, pattern, path, expected, globset) in DIFFERENCES {
        assert_eq!(ours(pattern, path), *expected, "{what}: `{pattern}` and `{path}`");
        let theirs = theirs(pattern).map(|glob| glob.is_match(path));
        assert_eq!(theirs, *globset, "{what}, `globset`: `{pattern}` and `{path}`");
        assert_ne!(Some(*expected), *globset);
    }
}
