//! The input of a hook, in the form that the programs have in common.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use foldlog_timeline::{CallReach, Lane, NewCall, shorten};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::AgentProgram;
use super::event::{HookEvent, HookInput};

/// Fields of an input. Those that are not named here are ignored.
#[derive(Deserialize)]
pub(super) struct Input<'a> {
    pub(super) session_id: String,
    #[serde(default)]
    pub(super) agent_id: Option<String>,
    pub(super) cwd: PathBuf,
    pub(super) hook_event_name: String,
    #[serde(default)]
    pub(super) prompt: Option<String>,
    #[serde(default)]
    pub(super) tool_name: Option<String>,
    #[serde(default, borrow)]
    pub(super) tool_input: Option<&'a RawValue>,
    #[serde(default, borrow)]
    pub(super) tool_response: Option<&'a RawValue>,
    #[serde(default)]
    pub(super) tool_use_id: Option<String>,
    #[serde(default)]
    pub(super) duration_ms: Option<u64>,
    #[serde(default)]
    pub(super) error: Option<String>,
    #[serde(default)]
    pub(super) source: Option<String>,
    #[serde(default)]
    pub(super) transcript_path: Option<PathBuf>,
    #[serde(default)]
    pub(super) new_cwd: Option<PathBuf>,
    /// The directory that the user has added.
    #[serde(default)]
    pub(super) directory: Option<PathBuf>,
}

impl Input<'_> {
    pub(super) fn lane(&self, program: &AgentProgram) -> Lane {
        Lane {
            program: program.name.to_owned(),
            session: self.session_id.clone(),
            agent: self.agent_id.clone(),
        }
    }

    pub(super) fn arguments(&self) -> ObjectFields<'_> {
        ObjectFields::of(self.tool_input)
    }

    pub(super) fn response(&self) -> ObjectFields<'_> {
        ObjectFields::of(self.tool_response)
    }

    /// Returns the event with the fields that all programs report.
    pub(super) fn into_hook_input(self, lane: Lane, event: HookEvent) -> HookInput {
        HookInput {
            command: self.command(),
            lane,
            directory: self.cwd,
            transcript: self.transcript_path,
            name: self.hook_event_name,
            event,
        }
    }

    /// Returns the tool's response, as long as it is recorded.
    pub(super) fn response_text(&self) -> Option<String> {
        self.tool_response.map(|response| shorten(response.get().to_owned()))
    }

    /// Returns the command of a shell, as long as it is recorded.
    pub(super) fn command(&self) -> Option<String> {
        self.arguments().text("command").map(shorten)
    }

    /// Returns a call of this input's tool. The files that it names are relative to the agent's
    /// current directory.
    pub(super) fn call(
        &self,
        lane: Lane,
        id: String,
        tool: String,
        paths: Option<Vec<String>>,
        process: Option<u32>,
    ) -> NewCall {
        let arguments = self.arguments();
        let title = paths
            .as_ref()
            .map(|paths| paths.join(", "))
            .or_else(|| arguments.text("command"))
            .or_else(|| arguments.text("description"));
        NewCall {
            lane,
            id,
            tool,
            arguments: shorten(self.tool_input.map_or("{}", RawValue::get).to_owned()),
            title: shorten(title.unwrap_or_default()),
            paths: paths.map(|paths| paths.iter().map(|path| self.cwd.join(Path::new(path))).collect()),
            process,
            may_overlap: false,
            reach: CallReach::default(),
        }
    }
}

/// The fields of an object, such as the arguments of a tool, which may be long.
pub(super) struct ObjectFields<'a>(HashMap<String, &'a RawValue>);

impl<'a> ObjectFields<'a> {
    fn of(object: Option<&'a RawValue>) -> ObjectFields<'a> {
        let fields = object.and_then(|object| serde_json::from_str(object.get()).ok());
        ObjectFields(fields.unwrap_or_default())
    }

    pub(super) fn text(&self, name: &str) -> Option<String> {
        serde_json::from_str(self.0.get(name)?.get()).ok()
    }

    /// Returns whether there is a field that is not null.
    pub(super) fn has(&self, name: &str) -> bool {
        self.0.get(name).is_some_and(|value| value.get() != "null")
    }
}
