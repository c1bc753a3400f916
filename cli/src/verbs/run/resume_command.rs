//! The command that resumes a run, quoted for a shell.

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::path::Path;

use foldlog::Session;
use foldlog_claude::OnLeftover;
use foldlog_codec::escape;
use foldlog_view::shell::quote_word;

use super::program::is_looked_up;
use super::{Args, args::absolute, run_session, tools};

struct Words(String);

impl Words {
    fn word(&mut self, word: &OsStr) {
        self.0.push(' ');
        self.0.push_str(&quote_word(word));
    }

    /// Adds an option with its value. A value that could be parsed as an option is joined to the
    /// option's word.
    fn option(&mut self, name: &str, value: impl AsRef<OsStr>) {
        let value = value.as_ref();
        if !value.as_encoded_bytes().starts_with(b"-") || value == "-" {
            self.word(OsStr::new(name));
            return self.word(value);
        }
        let mut word = OsStr::new(name).to_owned();
        word.push("=");
        word.push(value);
        self.word(&word);
    }
}

impl Args {
    /// Returns the command that resumes a session, in backquotes, followed by the names of
    /// variables that must be set as before. `message` is the user's text in this run. The command
    /// leaves out the text and the system prompt if the session contains them, the values of
    /// variables, which may be secrets, and the option `without`, with which the run would fail
    /// again.
    pub(super) fn resume_command(
        &self,
        session: &Session,
        message: Option<&str>,
        json: bool,
        without: Option<&str>,
    ) -> String {
        let held = run_session::read_recorded_prompts(session).unwrap_or_default();
        let mut words = Words("foldlog run --adapter claude".to_owned());
        if let Some(file) =
            self.prompt.as_deref().filter(|_| !message.is_some_and(|message| held.holds(message)))
        {
            words.option("--prompt", if file == Path::new("-") { file.to_owned() } else { absolute(file) });
        }
        words.option("--workspace", absolute(&self.workspace));
        words.option("--store", absolute(&self.store));
        if held.system.is_none() {
            self.system.iter().for_each(|text| words.option("--system", text));
            self.system_file.iter().for_each(|file| words.option("--system-file", absolute(file)));
        }
        self.options(&mut words, without);
        if json {
            words.word(OsStr::new("--json"));
        }
        words.option("--resume", session.id().to_string());
        let mut again = format!("`{}`", words.0);
        let unset: Vec<_> = self.env.iter().filter_map(|one| unset(one)).map(escape::text).collect();
        if !unset.is_empty() {
            let _ = write!(
                again,
                ", with {} set as before: values of variables are not printed",
                unset.join(", ")
            );
        }
        again
    }

    /// Adds the options that a session does not store.
    fn options(&self, words: &mut Words, without: Option<&str>) {
        let is_kept = |name: &str| without != Some(name);
        let tools: Vec<&str> = self.tools.iter().map(|name| name.trim()).collect();
        words.option("--tool", if tools.is_empty() { tools::NONE.to_owned() } else { tools.join(",") });
        words.option("--permission-mode", self.permission_mode.name());
        let values = [
            ("--model", self.model.clone()),
            ("--max-turns", self.max_turns.map(|most| most.to_string())),
            ("--max-budget-usd", self.max_budget_usd.map(|most| most.to_string())),
            ("--deadline", self.deadline.map(|time| format!("{}s", time.as_secs()))),
            ("--on-leftover", (self.on_leftover == OnLeftover::Stop).then(|| "stop".to_owned())),
        ];
        for (name, value) in values.into_iter().filter(|(name, _)| is_kept(name)) {
            value.iter().for_each(|value| words.option(name, value));
        }
        let is_name = is_looked_up(&self.program);
        words.option("--program", if is_name { self.program.clone() } else { absolute(&self.program) });
        for one in &self.env {
            words.option("--env", one.split_once('=').map_or(one.as_str(), |(name, _)| name));
        }
        self.leave_out.iter().for_each(|pattern| words.option("--leave-out", pattern));
        let flags = [
            ("--roll-back-failed", self.roll_back_failed),
            ("--gitignore", self.gitignore),
            ("--project-settings", self.project_settings),
            ("--project-servers", self.project_servers),
        ];
        flags.iter().filter(|(_, is_set)| *is_set).for_each(|(name, _)| words.word(OsStr::new(name)));
        if self.writing.unreplicated {
            words.word(OsStr::new("--unreplicated"));
        }
    }
}

/// Returns the name of a variable that the command line gives with a value, unless this process has
/// the same value.
fn unset(given: &str) -> Option<&str> {
    let (name, value) = given.split_once('=')?;
    (std::env::var_os(name).as_deref() != Some(OsStr::new(value))).then_some(name)
}
