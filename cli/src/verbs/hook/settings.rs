//! Foldlog's hooks in the text of a settings file.
//!
//! Foldlog adds a group of its own to each event:
//!
//! ```json
//! "PreToolUse": [
//!   { "matcher": "*", "hooks": [{ "type": "command", "command": "...", "timeout": 30 }] }
//! ]
//! ```
//!
//! Removing a hook also removes the objects and arrays that were inserted with it
//! ([`json_text`](super::json_text)), and leaves those that were there before.

use std::collections::BTreeSet;
use std::ops::Range;

use foldlog_view::document;
use serde::{Serialize, Serializer};

use super::json_text::{Content, Document, Node, TextError, is_empty};
use super::program::{program_of, replacement};
use crate::agents::{AgentEvent, AgentProgram};

/// Name of the property with the hooks, and of that of a group with its handlers.
const HOOKS: &str = "hooks";

/// Name of a list of names that older versions of Gemini CLI keep among the events.
const DISABLED: &str = "disabled";

/// Hooks that a settings file is to have.
#[derive(Clone, Debug)]
pub(super) struct WantedHooks {
    pub(super) agent: &'static AgentProgram,
    pub(super) command: String,
    pub(super) events: Vec<AgentEvent>,
}

/// One of foldlog's hooks in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct InstalledHook {
    pub(super) event: String,
    pub(super) command: String,
}

/// Facts about a settings file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct SettingsFacts {
    pub(super) hooks: Vec<InstalledHook>,
    /// Whether the file disables all hooks.
    pub(super) is_disabled: bool,
}

/// Returns the text of a settings file with the wanted hooks; `None` is a missing file. A text
/// without a value counts as an empty object.
///
/// Hooks of foldlog with another command get the wanted one. Those of unwanted events, and all but
/// the first one of an event, are removed.
///
/// # Errors
///
/// [`TextError`] if the text is not JSON, or its hooks do not have the expected form.
pub(super) fn with_hooks(text: Option<&str>, wanted: &WantedHooks) -> Result<String, TextError> {
    let made = || Document::text_of_object(HOOKS, &Groups(wanted));
    let Some(text) = text else { return Ok(made()) };
    if is_empty(text) {
        return Ok(format!("{text}\n{}", made()));
    }
    let mut document = checked(text)?;
    if document.root.property(HOOKS).is_none() {
        return Ok(document.append(&document.root, Some(HOOKS), &Groups(wanted))?.text);
    }
    let mut done = BTreeSet::new();
    while let Some((place, command)) = own_hooks(&document, wanted.agent).into_iter().find_map(|place| {
        let command = replacement(&wanted.command, &place.hook.command, wanted.agent);
        (place.hook.command != command).then_some((place, command))
    }) {
        // A command that is not recognised once it is written would be replaced again.
        if !done.insert(place.range.start) {
            break;
        }
        document = document.replace_text(place.range, &command)?;
    }
    for event in &wanted.events {
        if own_hooks(&document, wanted.agent).iter().any(|place| place.hook.event == event.name) {
            continue;
        }
        let Some((_, hooks)) = document.root.property(HOOKS) else { break };
        document = match hooks.property(event.name) {
            Some((_, groups)) => document.append(groups, None, &wanted.group(event))?,
            None => document.append(hooks, Some(event.name), &[wanted.group(event)])?,
        };
    }
    while let Some(place) = superfluous(&document, wanted) {
        match without_hook(&document, &place)? {
            Some(changed) => document = changed,
            None => break,
        }
    }
    Ok(document.text)
}

/// Returns the text of a settings file without foldlog's hooks; `None` if the file was made for them,
/// and has no other content.
///
/// # Errors
///
/// As of [`with_hooks`].
pub(super) fn without_hooks(text: &str, agent: &AgentProgram) -> Result<Option<String>, TextError> {
    if is_empty(text) {
        return Ok(Some(text.to_owned()));
    }
    let mut document = checked(text)?;
    // The last one first: the reverse order of insertion gives the former text.
    while let Some(place) = own_hooks(&document, agent).pop() {
        match without_hook(&document, &place)? {
            Some(changed) => document = changed,
            // The object was made, in a new file or in one without a value.
            None => {
                let before = document.before_made_object().and_then(|before| before.strip_suffix('\n'));
                return Ok(before.map(str::to_owned));
            }
        }
    }
    Ok(Some(document.text))
}

/// Returns facts about the text of a settings file.
///
/// # Errors
///
/// As of [`with_hooks`].
pub(super) fn facts(text: &str, agent: &AgentProgram) -> Result<SettingsFacts, TextError> {
    if is_empty(text) {
        return Ok(SettingsFacts::default());
    }
    let document = checked(text)?;
    let (path, value) = agent.disabled_by;
    let found = path.iter().try_fold(&document.root, |node, name| Some(node.property(name)?.1));
    let is_disabled = found.is_some_and(|node| matches!(node.content, Content::Boolean(is) if is == value));
    let hooks = own_hooks(&document, agent).into_iter().map(|place| place.hook).collect();
    Ok(SettingsFacts { hooks, is_disabled })
}

/// Describes a change of a settings file in words.
///
/// # Errors
///
/// As of [`with_hooks`].
pub(super) fn summary(
    before: Option<&str>,
    after: Option<&str>,
    agent: &AgentProgram,
) -> Result<Vec<String>, TextError> {
    let hooks = |text: Option<&str>| text.map_or(Ok(Vec::new()), |text| Ok(facts(text, agent)?.hooks));
    let (before, after) = (hooks(before)?, hooks(after)?);
    let events = |hooks: &[InstalledHook], others: &[InstalledHook]| {
        let is_in = |hook: &&InstalledHook| others.iter().any(|other| other.event == hook.event);
        let found = hooks.iter().filter(|hook| !is_in(hook)).map(|hook| hook.event.as_str());
        found.collect::<Vec<_>>().join(", ")
    };
    let replaced = after
        .iter()
        .filter(|hook| before.iter().any(|other| other.event == hook.event && other.command != hook.command));
    let replaced: Vec<&str> = replaced.map(|hook| hook.event.as_str()).collect();
    let repeated = before.iter().enumerate().filter(|(place, hook)| {
        let is_same = |other: &InstalledHook| other.event == hook.event;
        before.iter().take(*place).any(is_same) && after.iter().filter(|other| is_same(other)).count() == 1
    });
    let repeated: BTreeSet<&str> = repeated.map(|(_, hook)| hook.event.as_str()).collect();
    let repeated: Vec<&str> = repeated.into_iter().collect();
    let mut lines = Vec::new();
    for (what, events) in [
        ("adds hooks of", events(&after, &before)),
        ("replaces the command of the hooks of", replaced.join(", ")),
        ("removes repeated hooks of", repeated.join(", ")),
        ("removes the hooks of", events(&before, &after)),
    ] {
        if !events.is_empty() {
            lines.push(format!("{what} {events}"));
        }
    }
    let commands: BTreeSet<&str> = after.iter().map(|hook| hook.command.as_str()).collect();
    lines.extend(commands.into_iter().map(|command| format!("command: {command}")));
    Ok(lines)
}

/// Parses a text and checks the form of its hooks.
fn checked(text: &str) -> Result<Document, TextError> {
    let document = Document::parse(text.to_owned())?;
    let unexpected =
        |node: &Node, reason: String| Err(TextError { line: document.line(node.range.start), reason });
    let root = &document.root;
    if !matches!(root.content, Content::Object(_)) {
        return unexpected(root, "the settings are not an object".to_owned());
    }
    let mut all = root.entries().iter().filter(|entry| entry.name.as_deref() == Some(HOOKS));
    let Some(hooks) = all.next() else { return Ok(document) };
    if let Some(second) = all.next() {
        return unexpected(&second.value, format!("`{HOOKS}` occurs twice"));
    }
    if !matches!(hooks.value.content, Content::Object(_)) {
        return unexpected(&hooks.value, format!("`{HOOKS}` is not an object"));
    }
    let mut names = BTreeSet::new();
    let is_event = |name: &Option<String>| name.as_deref() != Some(DISABLED);
    for entry in hooks.value.entries().iter().filter(|entry| is_event(&entry.name)) {
        let name = entry.name.as_deref().unwrap_or_default();
        if !names.insert(name) {
            return unexpected(&entry.value, format!("`{HOOKS}.{name}` occurs twice"));
        }
        if !matches!(entry.value.content, Content::Array(_)) {
            return unexpected(&entry.value, format!("`{HOOKS}.{name}` is not an array"));
        }
        for group in entry.value.entries() {
            let handlers = group.value.property(HOOKS);
            let is_list = handlers.is_some_and(|(_, handlers)| {
                let is_object = |handler: &Node| matches!(handler.content, Content::Object(_));
                matches!(handlers.content, Content::Array(_))
                    && handlers.entries().iter().all(|handler| is_object(&handler.value))
            });
            if !is_list {
                let reason = format!("an entry of `{HOOKS}.{name}` has no array `{HOOKS}` of objects");
                return unexpected(&group.value, reason);
            }
        }
    }
    Ok(document)
}

/// Place of one of foldlog's hooks.
struct HookPlace {
    hook: InstalledHook,
    /// Range of the command.
    range: Range<usize>,
    /// Indexes of its event, its group and its handler.
    event: usize,
    group: usize,
    handler: usize,
}

/// Returns foldlog's hooks in the order of the text.
fn own_hooks(document: &Document, agent: &AgentProgram) -> Vec<HookPlace> {
    let mut found = Vec::new();
    let hooks = document.root.property(HOOKS).map(|(_, hooks)| hooks.entries()).unwrap_or_default();
    for (event, groups) in hooks.iter().enumerate() {
        for (group, handlers) in groups.value.entries().iter().enumerate() {
            let handlers = handlers.value.property(HOOKS).map(|(_, handlers)| handlers.entries());
            for (handler, entry) in handlers.unwrap_or_default().iter().enumerate() {
                let Some((_, node)) = entry.value.property("command") else { continue };
                let Some(command) = node.as_text() else { continue };
                if program_of(command, agent).is_some() {
                    let name = groups.name.clone().unwrap_or_default();
                    let hook = InstalledHook { event: name, command: command.to_owned() };
                    found.push(HookPlace { hook, range: node.range.clone(), event, group, handler });
                }
            }
        }
    }
    found
}

/// Returns a hook of an event that is not wanted, or that has an earlier one of foldlog's.
fn superfluous(document: &Document, wanted: &WantedHooks) -> Option<HookPlace> {
    let mut seen = BTreeSet::new();
    own_hooks(document, wanted.agent).into_iter().find(|place| {
        let is_wanted = wanted.events.iter().any(|event| event.name == place.hook.event);
        !is_wanted || !seen.insert(place.hook.event.clone())
    })
}

/// Returns the document without a hook; `None` if nothing else would remain of a file that was made
/// for it.
fn without_hook(document: &Document, place: &HookPlace) -> Result<Option<Document>, TextError> {
    let root = &document.root;
    let Some((index, hooks)) = root.property(HOOKS) else { return Ok(None) };
    let Some(groups) = hooks.entries().get(place.event).map(|entry| &entry.value) else { return Ok(None) };
    let group = groups.entries().get(place.group);
    let handlers = group.and_then(|group| group.value.property(HOOKS)).map(|(_, handlers)| handlers);
    let removed = match handlers {
        Some(handlers) if handlers.entries().len() > 1 => document.remove(handlers, place.handler),
        _ if !document.is_inserted_container(groups) => document.remove(groups, place.group),
        _ if !document.is_inserted_container(hooks) => document.remove(hooks, place.event),
        _ if document.before_made_object().is_none() => document.remove(root, index),
        _ => return Ok(None),
    };
    removed.map(Some)
}

/// Value of the property `hooks`.
struct Groups<'a>(&'a WantedHooks);

impl Serialize for Groups<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.events.iter().map(|event| (event.name, [self.0.group(event)])))
    }
}

impl WantedHooks {
    /// Returns a group of one hook.
    fn group(&self, event: &AgentEvent) -> impl Serialize {
        let handler = document! {
            r#type: "command",
            command: &self.command,
            timeout: event.timeout_seconds * self.agent.timeout_units,
            #[serde(flatten)] name: self.agent.hook_name.map(|name| document! { name }),
        };
        let matcher = event.has_matcher.then(|| document! { matcher: "*" });
        document! { #[serde(flatten)] matcher, hooks: [handler] }
    }
}
#[cfg(test)]
mod tests;
