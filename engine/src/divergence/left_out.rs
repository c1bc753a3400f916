//! The values of two records that are not compared.

use std::collections::BTreeMap;

/// Lists paths of values that a replay does not compare, for each event.
///
/// A path is one that a [`Divergence`](crate::Divergence) names. It excludes the value there with
/// everything in it; `[*]` matches any index. In the effects of an event, a path applies to all
/// slices.
///
/// ```
/// use foldlog::LeaveOut;
///
/// let leave_out = LeaveOut::new()
///     .path("model.answered", "$.event.took_ms")
///     .path("model.answered", "$.added[*].took_ms");
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeaveOut {
    paths: BTreeMap<String, Vec<String>>,
}

impl LeaveOut {
    /// Creates an empty list.
    pub fn new() -> LeaveOut {
        LeaveOut::default()
    }

    /// Adds a path for the event with that name.
    #[must_use]
    pub fn path(mut self, event: impl Into<String>, path: impl Into<String>) -> LeaveOut {
        self.paths.entry(event.into()).or_default().push(path.into());
        self
    }

    /// Adds the paths of an event, without duplicates.
    pub(crate) fn add(&mut self, event: &str, paths: &[&str]) {
        let known = self.paths.entry(event.to_owned()).or_default();
        for path in paths {
            if !known.iter().any(|one| one == path) {
                known.push((*path).to_owned());
            }
        }
    }

    pub(super) fn paths_of(&self, event: &str) -> &[String] {
        self.paths.get(event).map(Vec::as_slice).unwrap_or_default()
    }
}

/// Returns whether a pattern leads to the value at `path` or to one around it.
pub(super) fn covers(pattern: &str, path: &str) -> bool {
    let (mut pattern, mut path) = (pattern, path);
    while let Some((before, after)) = pattern.split_once("[*]") {
        let Some(rest) = path.strip_prefix(before).and_then(|rest| rest.strip_prefix('[')) else {
            return false;
        };
        let Some((index, rest)) = rest.split_once(']') else { return false };
        if index.is_empty() || !index.bytes().all(|byte| byte.is_ascii_digit()) {
            return false;
        }
        (pattern, path) = (after, rest);
    }
    path.strip_prefix(pattern).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
}

/// Returns whether two texts differ only in the addresses in them.
pub(super) fn same_text(old: &str, new: &str) -> bool {
    if !old.contains("0x") || !new.contains("0x") {
        return false;
    }
    without_addresses(old) == without_addresses(new)
}

/// Returns a text with `0x` in place of each address: `0x` and 8 to 16 hexadecimal digits.
fn without_addresses(text: &str) -> String {
    let (mut out, mut rest) = (String::new(), text);
    while let Some((before, after)) = rest.split_once("0x") {
        out.push_str(before);
        out.push_str("0x");
        let digits = after.bytes().take_while(u8::is_ascii_hexdigit).count();
        let continues =
            after.get(digits..).is_some_and(|after| after.starts_with(|c: char| c.is_alphanumeric()));
        let is_address = (8..=16).contains(&digits) && !continues;
        rest = after.get(if is_address { digits } else { 0 }..).unwrap_or_default();
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_covers_what_is_within_it_and_an_asterisk_any_index() {
        assert!(covers("$.event.took", "$.event.took"));
        assert!(covers("$.event.took", "$.event.took.ms"));
        assert!(covers("$.event.steps[*].took", "$.event.steps[12].took[3]"));
        assert!(covers("$.event[*][*]", "$.event[0][7]"));
        assert!(!covers("$.event.took", "$.event.took_ms"));
        assert!(!covers("$.event.took.ms", "$.event.took"));
        assert!(!covers("$.event.steps[*].took", "$.event.steps[\"0\"].took"));
        assert!(!covers("$.event.steps[*]", "$.event.steps"));
    }

    #[test]
    fn addresses_are_left_out_and_longer_or_shorter_numbers_are_not() {
        assert!(same_text("at 0x7ffd5e8a1b2c, 0x55d0c8a01234!", "at 0x7ffc00000000, 0x55d0c8a01235!"));
        assert!(!same_text("at 0x7ffd5e8a1b2c", "on 0x7ffd5e8a1b2c"));
        assert!(!same_text("colour 0xff00fe", "colour 0xff00ff"));
        let account = |last: char| format!("0x{}{last}", "0123456789".repeat(3));
        assert!(!same_text(&account('1'), &account('2')));
        assert!(!same_text("a", "b"));
    }
}
