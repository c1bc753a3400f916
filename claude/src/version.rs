//! Versions of the program.

/// Describes a version of the program, such as 2.1.332. Versions are ordered.
///
/// ```
/// use foldlog_claude::ClaudeVersion;
///
/// assert!(ClaudeVersion::parse("2.1.100") < Some(ClaudeVersion::KNOWS_COMPOSED));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClaudeVersion([u64; 3]);

impl ClaudeVersion {
    /// First version that supports [literal prompts](super::UserInput::client_composed). Older ones
    /// expand `@path` in them.
    pub const KNOWS_COMPOSED: ClaudeVersion = ClaudeVersion([2, 1, 248]);

    /// Parses three numbers separated by dots, and ignores the rest; `None` if the text starts
    /// differently.
    pub fn parse(text: &str) -> Option<ClaudeVersion> {
        let mut numbers = text.split(|character: char| !character.is_ascii_digit()).map(str::parse);
        let mut next = || numbers.next()?.ok();
        Some(ClaudeVersion([next()?, next()?, next()?]))
    }
}

impl std::fmt::Display for ClaudeVersion {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [major, minor, patch] = self.0;
        write!(f, "{major}.{minor}.{patch}")
    }
}
