//! The input of a hook, in the form that the programs have in common.

use std::path::{Path, PathBuf};

use foldlog_timeline::{CallReach, Lane, NewCall};
use serde::Deserialize;
use serde_json::Value as Json;
use serde_json::value::RawValue;

use super::AgentProgram;

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

    pub(super) fn arguments(&self) -> Arguments {
        let text = self.tool_input.map_or("{}", RawValue::get);
        Arguments(serde_json::from_str(text).unwrap_or_default())
    }

    pub(super) fn response(&self) -> Json {
        self.tool_response.and_then(|response| serde_json::from_str(response.get()).ok()).unwrap_or_default()
    }

    pub(super) fn response_text(&self) -> Option<String> {
        self.tool_response.map(|response| response.get().to_owned())
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
            arguments: self.tool_input.map_or("{}", RawValue::get).to_owned(),
            title: title.unwrap_or_default(),
            paths: paths.map(|paths| paths.iter().map(|path| self.cwd.join(Path::new(path))).collect()),
            process,
            may_overlap: false,
            reach: CallReach::default(),
        }
    }
}

/// Arguments of a tool.
pub(super) struct Arguments(Json);

impl Arguments {
    pub(super) fn text(&self, name: &str) -> Option<String> {
        self.0.get(name).and_then(Json::as_str).map(str::to_owned)
    }
}
