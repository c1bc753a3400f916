//! Leave-out lists: the host's, and those in `.gitignore` files.

use crate::pattern::Pattern;

#[derive(Debug, Clone)]
struct Rule {
    pattern: Pattern,
    /// Whether the pattern is for the whole path, or only for the name.
    whole_path: bool,
    directories_only: bool,
    leaves_out: bool,
}

/// A leave-out list in git's format. The last matching line decides. A line that starts with `!`
/// includes paths again, one that ends in `/` is for directories, and one with a `/` elsewhere is
/// for the whole path below the list's directory.
#[derive(Debug, Clone, Default)]
pub(super) struct LeaveOut {
    rules: Vec<Rule>,
}

impl LeaveOut {
    pub(super) fn new<'a>(lines: impl IntoIterator<Item = &'a [u8]>) -> LeaveOut {
        LeaveOut { rules: lines.into_iter().filter_map(Rule::new).collect() }
    }

    pub(super) fn of_file(bytes: &[u8]) -> LeaveOut {
        let lines = bytes.split(|byte| *byte == b'\n');
        LeaveOut::new(
            lines.map(|line| line.strip_suffix(b"\r").unwrap_or(line)).filter(|line| !line.starts_with(b"#")),
        )
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// Returns whether a path below the list's directory is left out, or `None` if no line matches
    /// it.
    pub(super) fn says(&self, path: &[u8], is_directory: bool) -> Option<bool> {
        let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or(path);
        let applies = |rule: &&Rule| {
            (is_directory || !rule.directories_only)
                && rule.pattern.matches(if rule.whole_path { path } else { name })
        };
        self.rules.iter().rev().find(applies).map(|rule| rule.leaves_out)
    }
}

impl Rule {
    fn new(line: &[u8]) -> Option<Rule> {
        let line = without_trailing_spaces(line);
        let (leaves_out, line) = line.strip_prefix(b"!").map_or((true, line), |line| (false, line));
        let (directories_only, line) = line.strip_suffix(b"/").map_or((false, line), |line| (true, line));
        let whole_path = line.contains(&b'/');
        let parts = line.strip_prefix(b"/").unwrap_or(line).split(|byte| *byte == b'/');
        let mut parts = parts.filter(|part| !part.is_empty() && *part != b".").peekable();
        parts.peek()?;
        let pattern = Pattern::from_parts(parts);
        Some(Rule { pattern, whole_path, directories_only, leaves_out })
    }
}

fn without_trailing_spaces(line: &[u8]) -> &[u8] {
    let mut line = line;
    while let [rest @ .., b' '] = line
        && !rest.ends_with(b"\\")
    {
        line = rest;
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_read_as_git_reads_one() {
        let list = LeaveOut::of_file(
            b"# no rule\n*.log\n!keep.log\n/target/\nbuild/out\n\\!odd\n\nspace\\ \nend  \r\n",
        );
        let says = |path: &str, directory| list.says(path.as_bytes(), directory);
        assert_eq!(says("a/b.log", false), Some(true));
        assert_eq!(says("a/keep.log", false), Some(false));
        assert_eq!((says("target", true), says("target", false)), (Some(true), None));
        assert_eq!((says("a/target", true), says("build/out", false)), (None, Some(true)));
        assert_eq!((says("a/build/out", false), says("!odd", false)), (None, Some(true)));
        assert_eq!((says("space ", false), says("end", false)), (Some(true), Some(true)));
        assert_eq!(says("# no rule", false), None);
    }
}
