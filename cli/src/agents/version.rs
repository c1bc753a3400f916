//! The version of a program.

use std::fmt;

/// A version of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ProgramVersion(pub(super) u32, pub(super) u32, pub(super) u32);

impl ProgramVersion {
    /// Reads the version from the output of `--version`, such as `2.1.332 (Claude Code)` or
    /// `codex-cli 0.171.0`.
    pub(crate) fn from_output(output: &str) -> Option<ProgramVersion> {
        output.split_whitespace().find_map(ProgramVersion::from_word)
    }

    fn from_word(word: &str) -> Option<ProgramVersion> {
        // A suffix, as in `2.1.0-beta`, does not count.
        let core = word.split(['-', '+']).next()?;
        let mut numbers = core.split('.').map(|number| number.parse().ok());
        let version = ProgramVersion(numbers.next()??, numbers.next()??, numbers.next()??);
        numbers.next().is_none().then_some(version)
    }
}

impl fmt::Display for ProgramVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ProgramVersion(major, minor, patch) = self;
        write!(f, "{major}.{minor}.{patch}")
    }
}

#[test]
fn a_version_is_read_from_the_output_of_a_program() {
    let read = ProgramVersion::from_output;
    assert_eq!(read("2.1.332 (Claude Code)\n"), Some(ProgramVersion(2, 1, 332)));
    assert_eq!(read("codex-cli 0.171.0"), Some(ProgramVersion(0, 171, 0)));
    assert_eq!(read("2.1.0-beta.1"), Some(ProgramVersion(2, 1, 0)));
    for other in ["", "Claude Code", "2.1", "2.1.x", "2.1.3.4", "v2.1.3"] {
        assert_eq!(read(other), None, "{other}");
    }
}
