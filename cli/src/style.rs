//! The colours of output for a person, and the conditions for their use.
//!
//! Colours repeat information that a word already gives, so a text without them loses nothing. They
//! are put around pieces that are already escaped ([`Output::pieces`](crate::Output)), so no text
//! from a log can imitate them. JSON has no colours.

use std::ffi::OsString;

use anstyle::AnsiColor;
pub(crate) use anstyle::Style;
use clap::ValueEnum;

/// No style.
pub(crate) const PLAIN: Style = Style::new();
/// Headings.
pub(crate) const HEADING: Style = Style::new().bold();
/// Success, preserved or added items.
pub(crate) const GOOD: Style = AnsiColor::Green.on_default();
/// Damaged, failed or removed items.
pub(crate) const BAD: Style = AnsiColor::Red.on_default();
/// Items that need attention, or that changed.
pub(crate) const CAUTION: Style = AnsiColor::Yellow.on_default();
/// Speakers other than the user.
pub(crate) const SPEAKER: Style = AnsiColor::Cyan.on_default();
/// Abandoned records.
pub(crate) const GONE: Style = Style::new().dimmed();

/// Says when a stream is coloured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum ColorMode {
    /// If it is a terminal, unless a variable says otherwise.
    #[default]
    Auto,
    /// Whatever it is.
    Always,
    /// Not at all.
    Never,
}

/// Colour settings of the process's variables.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ColorVariables {
    /// Not set: terminals are coloured.
    #[default]
    Silent,
    /// No stream is coloured: `NO_COLOR`, which outranks all others.
    Forbid,
    /// Every stream is coloured, terminal or not: `CLICOLOR_FORCE`.
    Force,
    /// Terminals are not coloured: `CLICOLOR=0`, `TERM=dumb`, or no `TERM` at all.
    Dull,
}

impl ColorVariables {
    /// Reads the variables by `get`. An empty variable counts as unset, and so does
    /// `CLICOLOR_FORCE=0`.
    pub fn read(get: impl Fn(&str) -> Option<OsString>) -> ColorVariables {
        let get = |name: &str| get(name).filter(|value| !value.is_empty());
        if get("NO_COLOR").is_some() {
            return ColorVariables::Forbid;
        }
        if get("CLICOLOR_FORCE").is_some_and(|value| value != "0") {
            return ColorVariables::Force;
        }
        let is_dull = get("CLICOLOR").is_some_and(|value| value == "0");
        if is_dull || is_dumb(get) { ColorVariables::Dull } else { ColorVariables::Silent }
    }
}

/// Returns whether `TERM` is missing or names a terminal that only appends characters.
pub(crate) fn is_dumb(get: impl Fn(&str) -> Option<OsString>) -> bool {
    get("TERM").is_none_or(|value| value.is_empty() || value == "dumb")
}

/// Describes which of the process's streams are terminals, and the colour settings of its
/// variables.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Terminal {
    /// Whether results go to a terminal.
    pub stdout: bool,
    /// Whether notes and errors go to a terminal.
    pub stderr: bool,
    /// Colour settings of the variables.
    pub variables: ColorVariables,
}

impl Terminal {
    /// Returns whether a stream is coloured. The command line outranks the variables, and these
    /// outrank the default for terminals.
    pub(crate) fn colors(self, when: ColorMode, is_terminal: bool) -> bool {
        match (when, self.variables) {
            (ColorMode::Always, _) | (ColorMode::Auto, ColorVariables::Force) => true,
            (ColorMode::Never, _) | (ColorMode::Auto, ColorVariables::Forbid | ColorVariables::Dull) => false,
            (ColorMode::Auto, ColorVariables::Silent) => is_terminal,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variables(set: &[(&str, &str)]) -> ColorVariables {
        ColorVariables::read(|name| {
            let found = set.iter().find(|(set, _)| *set == name).map(|(_, value)| *value);
            found.or((name == "TERM").then_some("xterm")).map(OsString::from)
        })
    }

    #[test]
    fn variables_outrank_one_another_in_a_fixed_order() {
        assert_eq!(variables(&[]), ColorVariables::Silent);
        assert_eq!(variables(&[("NO_COLOR", ""), ("CLICOLOR", "1")]), ColorVariables::Silent);
        assert_eq!(variables(&[("NO_COLOR", "1"), ("CLICOLOR_FORCE", "1")]), ColorVariables::Forbid);
        assert_eq!(
            variables(&[("CLICOLOR_FORCE", "1"), ("CLICOLOR", "0"), ("TERM", "dumb")]),
            ColorVariables::Force
        );
        assert_eq!(variables(&[("CLICOLOR_FORCE", "0")]), ColorVariables::Silent);
        assert_eq!(variables(&[("CLICOLOR", "0")]), ColorVariables::Dull);
        assert_eq!(variables(&[("TERM", "dumb")]), ColorVariables::Dull);
        assert_eq!(variables(&[("TERM", "")]), ColorVariables::Dull);
    }

    #[test]
    fn the_command_line_outranks_the_variables() {
        let of = |variables| Terminal { stdout: true, stderr: false, variables };
        assert!(of(ColorVariables::Silent).colors(ColorMode::Auto, true));
        assert!(!of(ColorVariables::Silent).colors(ColorMode::Auto, false));
        assert!(of(ColorVariables::Force).colors(ColorMode::Auto, false));
        assert!(!of(ColorVariables::Dull).colors(ColorMode::Auto, true));
        assert!(!of(ColorVariables::Forbid).colors(ColorMode::Auto, true));
        assert!(of(ColorVariables::Forbid).colors(ColorMode::Always, false));
        assert!(!of(ColorVariables::Force).colors(ColorMode::Never, true));
    }
}
