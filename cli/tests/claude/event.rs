//! The hook events of a session, as the program reported them.

use serde_json::Value;

/// An event, from the hook's standard input.
#[derive(Clone, Debug)]
pub(crate) struct Event(Value);

impl Event {
    pub(crate) fn parse(line: &str) -> Event {
        Event(serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}")))
    }

    /// Returns the whole input.
    pub(crate) fn input(&self) -> &Value {
        &self.0
    }

    /// Returns the event's name.
    pub(crate) fn name(&self) -> &str {
        self.text("hook_event_name")
    }

    pub(crate) fn tool(&self) -> Option<&str> {
        self.0["tool_name"].as_str()
    }

    /// Returns the sub-agent with the event, or `None` for the main agent.
    pub(crate) fn agent(&self) -> Option<&str> {
        self.0["agent_id"].as_str()
    }

    /// Returns true if the event ends a turn that leaves no sub-agent or command behind. Version
    /// 2.1.100 has no list of these, because its sub-agents end before the turn does.
    pub(crate) fn ends_turn(&self) -> bool {
        self.name() == "Stop" && self.0["background_tasks"].as_array().is_none_or(Vec::is_empty)
    }

    /// Returns true if the program itself submitted the prompt, to report a task's end.
    pub(crate) fn is_notification(&self) -> bool {
        self.name() == "UserPromptSubmit" && self.text("prompt").contains("<task-notification>")
    }

    /// Returns the event with its tool, such as `PreToolUse Bash`.
    pub(crate) fn title(&self) -> String {
        self.tool().map_or_else(|| self.name().to_owned(), |tool| format!("{} {tool}", self.name()))
    }

    fn text(&self, name: &str) -> &str {
        self.0[name].as_str().unwrap_or_default()
    }
}

/// Returns the titles of the main agent's events, without prompts that the program submitted
/// itself and the turns that these started.
pub(crate) fn main_lane(events: &[Event]) -> Vec<String> {
    let mut titles: Vec<String> = Vec::new();
    for event in events.iter().filter(|event| event.agent().is_none() && !event.is_notification()) {
        // A turn that a notification started ends with one more `Stop`.
        if event.name() != "Stop" || titles.last().is_none_or(|last| last != "Stop") {
            titles.push(event.title());
        }
    }
    titles
}

/// Returns the titles of the sub-agents' events.
pub(crate) fn agent_lane(events: &[Event]) -> Vec<String> {
    events.iter().filter(|event| event.agent().is_some()).map(Event::title).collect()
}
