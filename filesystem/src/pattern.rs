//! Patterns over paths, for calls of `glob` and for leave-out lists.
//!
//! Matching takes time in proportion to pattern times path, for any pattern: each kind of star
//! remembers only the last place where it was tried.

use super::path;
use crate::error::{Error, Result};

#[derive(Debug, Clone)]
pub(super) struct Pattern {
    parts: Vec<PatternPart>,
}

#[derive(Debug, Clone)]
enum PatternPart {
    /// `**`: any number of names, at least one at the end of a pattern.
    Names,
    /// A pattern for one name.
    Name(Vec<u8>),
}

impl Pattern {
    pub(super) fn new(pattern: &str) -> Result<Pattern> {
        let parts = path::parts(pattern)?;
        if parts.is_empty() {
            return Err(Error::path(pattern, "the root is not a pattern"));
        }
        Ok(Pattern::from_parts(parts.into_iter().map(str::as_bytes)))
    }

    /// A pattern of these parts. A pattern without parts matches nothing.
    pub(super) fn from_parts<'a>(parts: impl Iterator<Item = &'a [u8]>) -> Pattern {
        let mut pattern: Vec<PatternPart> = Vec::new();
        for part in parts {
            match part {
                b"**" if matches!(pattern.last(), Some(PatternPart::Names)) => {}
                b"**" => pattern.push(PatternPart::Names),
                name => pattern.push(PatternPart::Name(name.to_vec())),
            }
        }
        Pattern { parts: pattern }
    }

    pub(super) fn matches(&self, path: &[u8]) -> bool {
        let names: Vec<&[u8]> = path.split(|byte| *byte == b'/').collect();
        let (mut part, mut name) = (0, 0);
        let mut star: Option<(usize, usize)> = None;
        while let Some(present) = names.get(name) {
            match self.parts.get(part) {
                Some(PatternPart::Names) if part + 1 == self.parts.len() => return true,
                Some(PatternPart::Names) => {
                    part += 1;
                    star = Some((part, name));
                    continue;
                }
                Some(PatternPart::Name(pattern)) if name_matches(pattern, present) => {
                    (part, name) = (part + 1, name + 1);
                    continue;
                }
                _ => {}
            }
            let Some((after, tried)) = &mut star else { return false };
            *tried += 1;
            (part, name) = (*after, *tried);
        }
        part == self.parts.len()
    }
}

/// Returns the first character of some bytes, and its width. A byte that is not UTF-8 counts as a
/// character.
fn character(bytes: &[u8]) -> Option<(u32, usize)> {
    let first = *bytes.first()?;
    let width = match first {
        0xC2..=0xDF => 2,
        0xE0..=0xEF => 3,
        0xF0..=0xF4 => 4,
        _ => 1,
    };
    let text = bytes.get(..width).and_then(|bytes| std::str::from_utf8(bytes).ok());
    match text.and_then(|text| text.chars().next()) {
        Some(found) => Some((u32::from(found), width)),
        // Above all characters, so that such a byte is matched only by itself, `?` and `*`.
        None => Some((0x0011_0000 + u32::from(first), 1)),
    }
}

fn name_matches(pattern: &[u8], name: &[u8]) -> bool {
    let (mut rest, mut left) = (pattern, name);
    let mut star: Option<(&[u8], &[u8])> = None;
    loop {
        if let [b'*', after @ ..] = rest {
            star = Some((after, left));
            rest = after;
            continue;
        }
        let Some((found, width)) = character(left) else { return rest.is_empty() };
        if let Some(after) = one(rest, found) {
            rest = after;
            left = left.get(width..).unwrap_or_default();
            continue;
        }
        let Some((after, tried)) = star else { return false };
        let Some((_, width)) = character(tried) else { return false };
        let next = tried.get(width..).unwrap_or_default();
        star = Some((after, next));
        (rest, left) = (after, next);
    }
}

/// Returns the rest of a pattern if its first element matches this character, otherwise `None`.
fn one(pattern: &[u8], found: u32) -> Option<&[u8]> {
    match pattern {
        [] => None,
        [b'?', after @ ..] => Some(after),
        [b'[', set @ ..] => match in_set(set, found) {
            Some((true, after)) => Some(after),
            Some((false, _)) => None,
            // A bracket that is never closed matches itself.
            None => (found == u32::from(b'[')).then_some(set),
        },
        [b'\\', literal @ ..] if !literal.is_empty() => literally(literal, found),
        literal => literally(literal, found),
    }
}

fn literally(pattern: &[u8], found: u32) -> Option<&[u8]> {
    let (expected, width) = character(pattern)?;
    (expected == found).then(|| pattern.get(width..)).flatten()
}

/// Returns whether a set of characters, after its opening bracket, contains a character; and the
/// pattern after the set.
fn in_set(set: &[u8], found: u32) -> Option<(bool, &[u8])> {
    let (negated, mut rest) = match set {
        [b'!' | b'^', rest @ ..] => (true, rest),
        rest => (false, rest),
    };
    let (mut holds, mut first) = (false, true);
    loop {
        if let [b']', after @ ..] = rest
            && !first
        {
            return Some((holds != negated, after));
        }
        first = false;
        let (low, after) = set_character(rest)?;
        rest = after;
        let mut high = low;
        if let [b'-', after @ ..] = rest
            && !matches!(after, [] | [b']', ..])
        {
            (high, rest) = set_character(after)?;
        }
        holds |= (low..=high).contains(&found);
    }
}

fn set_character(set: &[u8]) -> Option<(u32, &[u8])> {
    let set = match set {
        [b'\\', after @ ..] if !after.is_empty() => after,
        set => set,
    };
    let (found, width) = character(set)?;
    Some((found, set.get(width..)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(pattern: &str, path: &str) -> bool {
        Pattern::new(pattern).unwrap().matches(path.as_bytes())
    }

    #[test]
    fn stars_sets_and_escapes_match_what_they_stand_for() {
        for (pattern, path) in [
            ("*.rs", "a.rs"),
            ("*", ".hidden"),
            ("**/*.rs", "a.rs"),
            ("**/*.rs", "a/b/c.rs"),
            ("a/**/b", "a/b"),
            ("a/**/b", "a/x/y/b"),
            ("a/**", "a/b/c"),
            ("?", "é"),
            ("[a-c]x", "bx"),
            ("[!a-c]x", "dx"),
            ("[]a]", "]"),
            ("[a", "[a"),
            (r"\*", "*"),
            ("a*b*c", "a__b_b__c"),
            ("**/x/**/y", "x/a/x/b/y"),
        ] {
            assert!(matches(pattern, path), "{pattern} {path}");
        }
        for (pattern, path) in [
            ("*.rs", "a/b.rs"),
            ("a/**", "a"),
            ("a/**/b", "a/b/c"),
            ("?", "ab"),
            ("[!a-c]x", "bx"),
            (r"\*", "a"),
            ("a*b", "ab/b"),
        ] {
            assert!(!matches(pattern, path), "{pattern} {path}");
        }
        assert!(!matches(&"*a".repeat(200), &"a".repeat(199)), "and soon");
    }
}
