//! The hook events of Claude Code that foldlog uses, and the versions that know them.
//!
//! In version 2.1.100, a settings file that names an unknown event loses all of its hooks, so only
//! events that the installed version knows are written. The versions in the table were measured: the
//! list of events was read in the npm packages 2.0.0, 2.0.44 to 2.0.47, 2.0.50, 2.0.54 to 2.0.58,
//! 2.0.60, 2.0.77, 2.1.0, 2.1.100 and 2.1.332. 2.0.44 lacks `PermissionRequest`, and 2.0.55
//! `PostToolUseFailure`. A version that was not measured counts as knowing what an older one knows.

use std::fmt;

/// An event, for which a hook is installed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct HookEvent {
    /// Name in settings files and on standard input of the hook.
    pub(super) name: &'static str,
    /// First measured version that knows it.
    pub(super) since: ClaudeVersion,
    /// Whether its hooks are selected by the name of a tool.
    pub(super) has_matcher: bool,
}

/// Oldest version that was measured.
pub(super) const OLDEST: ClaudeVersion = ClaudeVersion(2, 0, 0);

const PERMISSION_REQUEST: ClaudeVersion = ClaudeVersion(2, 0, 45);
const POST_TOOL_USE_FAILURE: ClaudeVersion = ClaudeVersion(2, 0, 56);

/// All events, in the order in which a session has them.
pub(super) const EVENTS: [HookEvent; 9] = [
    event("SessionStart", OLDEST, false),
    event("UserPromptSubmit", OLDEST, false),
    event("PreToolUse", OLDEST, true),
    event("PostToolUse", OLDEST, true),
    event("PostToolUseFailure", POST_TOOL_USE_FAILURE, true),
    event("PermissionRequest", PERMISSION_REQUEST, true),
    event("Stop", OLDEST, false),
    event("SubagentStop", OLDEST, false),
    event("SessionEnd", OLDEST, false),
];

const fn event(name: &'static str, since: ClaudeVersion, has_matcher: bool) -> HookEvent {
    HookEvent { name, since, has_matcher }
}

/// Returns the events that a version knows; without a version, those that all measured versions
/// know.
pub(super) fn known_events(version: Option<ClaudeVersion>) -> Vec<HookEvent> {
    let version = version.unwrap_or(OLDEST);
    EVENTS.into_iter().filter(|event| event.since <= version).collect()
}

/// A version of Claude Code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ClaudeVersion(u32, u32, u32);

impl ClaudeVersion {
    /// Reads the version from the output of `claude --version`, such as `2.1.332 (Claude Code)`.
    pub(super) fn from_output(output: &str) -> Option<ClaudeVersion> {
        // A suffix, as in `2.1.0-beta`, does not count.
        let word = output.split_whitespace().next()?;
        let core = word.split(['-', '+']).next()?;
        let mut numbers = core.split('.').map(|number| number.parse().ok());
        let version = ClaudeVersion(numbers.next()??, numbers.next()??, numbers.next()??);
        numbers.next().is_none().then_some(version)
    }
}

impl fmt::Display for ClaudeVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ClaudeVersion(major, minor, patch) = self;
        write!(f, "{major}.{minor}.{patch}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(version: &str) -> Vec<&'static str> {
        let version = ClaudeVersion::from_output(version).unwrap();
        known_events(Some(version)).iter().map(|event| event.name).collect()
    }

    #[test]
    fn a_version_is_read_from_the_output_of_the_program() {
        assert_eq!(ClaudeVersion::from_output("2.1.332 (Claude Code)\n"), Some(ClaudeVersion(2, 1, 332)));
        assert_eq!(ClaudeVersion::from_output("2.1.0-beta.1"), Some(ClaudeVersion(2, 1, 0)));
        for other in ["", "Claude Code", "2.1", "2.1.x", "2.1.3.4", "v2.1.3"] {
            assert_eq!(ClaudeVersion::from_output(other), None, "{other}");
        }
    }

    #[test]
    fn an_older_version_gets_only_the_events_that_it_knows() {
        assert_eq!(names("2.1.332").len(), EVENTS.len());
        assert_eq!(names("9.0.0").len(), EVENTS.len());
        assert!(!names("2.0.55").contains(&"PostToolUseFailure"));
        assert!(names("2.0.55").contains(&"PermissionRequest"));
        assert!(!names("2.0.44").contains(&"PermissionRequest"));
        assert_eq!(names("2.0.0").len(), EVENTS.len() - 2);
        assert_eq!(known_events(None).len(), EVENTS.len() - 2);
        assert_eq!(names("1.0.100"), [""; 0]);
    }

    #[test]
    fn the_plugin_has_a_hook_for_each_event() {
        let hooks = include_str!("../../../plugin/claude/hooks/hooks.json");
        let hooks: serde_json::Value = serde_json::from_str(hooks).unwrap();
        let hooks = hooks["hooks"].as_object().unwrap();
        assert_eq!(hooks.len(), EVENTS.len());
        for event in EVENTS {
            let groups = hooks[event.name].as_array().unwrap();
            let handler = serde_json::json!({
                "type": "command", "command": super::super::program::SHARED_COMMAND, "timeout": 30
            });
            let mut group = serde_json::json!({ "hooks": [handler] });
            if event.has_matcher {
                group["matcher"] = "*".into();
            }
            assert_eq!(groups, &[group], "{}", event.name);
        }
    }
}
