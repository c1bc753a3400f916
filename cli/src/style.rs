//! The colours of what a person reads, and when they are used.
//!
//! Colours say again what a word says: a text without them loses nothing. They are put around pieces that are escaped already
//! ([`Output::pieces`](crate::Output)), so that no text from a log passes for one of them. JSON has none.

use std::ffi::OsString;

use anstyle::AnsiColor;
pub(crate) use anstyle::Style;
use clap::ValueEnum;

/// No style at all.
pub(crate) const PLAIN: Style = Style::new();
/// A heading.
pub(crate) const HEADING: Style = Style::new().bold();
/// What holds, was kept or was added.
pub(crate) const GOOD: Style = AnsiColor::Green.on_default();
/// What is damaged, failed or was removed.
pub(crate) const BAD: Style = AnsiColor::Red.on_default();
/// What somebody has to look at, or what changed.
pub(crate) const CAUTION: Style = AnsiColor::Yellow.on_default();
/// Who speaks, other than the user.
pub(crate) const SPEAKER: Style = AnsiColor::Cyan.on_default();
/// What a rollback has abandoned.
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

/// Tells what the process's variables ask of colours.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ColorVariables {
    /// Nothing: terminals are coloured.
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
    /// Reads the variables by `get`. One that is empty counts as unset, and so does `CLICOLOR_FORCE=0`.
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

/// Returns whether `TERM` names a terminal that only appends characters, or none.
pub(crate) fn is_dumb(get: impl Fn(&str) -> Option<OsString>) -> bool {
    get("TERM").is_none_or(|value| value.is_empty() || value == "dumb")
}

/// Tells which of the process's streams are terminals, and what its variables ask of colours.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Terminal {
    /// Whether results go to a terminal.
    pub stdout: bool,
    /// Whether notes and errors go to a terminal.
    pub stderr: bool,
    /// What the variables ask.
    pub variables: ColorVariables,
}

impl Terminal {
    /// Returns whether a stream is coloured that is a terminal or not, as the command line and then the variables say.
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
