//! `foldlog import`: imports recorded runs of other tools' agents, and conversations, each into its
//! own session.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::Subcommand;
use foldlog::{Export, ImportOptions, SessionOptions, SessionTypes, Store};
use foldlog_codec::record::time_text;
use foldlog_tasks::{
    CrashRecoveryManager, Error, ImportedSession, PartialTree, RecoveryStrategy, declare, import_session,
    import_tree, unfinished_imports,
};
use foldlog_view::document;
use foldlog_view::documents::PathField;
use foldlog_view::text::count_text;

use crate::checkpoint_text::print_outlook;
use crate::command::{Access, Command, Group, Target};
use crate::failure::{HOLDS, Result};
use crate::output::Output;
use crate::runs::claude_code::{FindingKind, import as import_transcripts};
use crate::runs::import::{ImportCounts, messages, run as write_run};
use crate::runs::{AgentRun, openai, read_swe_agent, read_tau_bench, types};

/// Describes the fields of `import claude-code --json`.
const CLAUDE_CODE_JSON: &str = "\
With --json one object:
  sessions, messages, records, rollbacks, log_bytes, seconds
  lines, rewinds, agents   lines of all files, rewinds, and sub-agents that became child sessions
  findings                 kind, file, line; id: what is missing or repeated; lines: number of
                           lines that repeat earlier ones
The kinds are dangling_parent, dangling_logical_parent, cycle, second_beginning, torn_line,
malformed_line, replayed_lines, repeated_uuid, agent_without_call, call_without_result.";

/// Describes the fields of `import aca --json`.
const ACA_JSON: &str = "\
With --json one object:
  session, dir      the new session
  exported_session  the session that was exported
  tasks, messages   numbers of tasks and messages
  differing         parts of the state that differ from the exported session
With --partial one object:
  session           the new session, which requires validation; null if nothing was imported
  impossible, position, tasks, completed_tasks, messages, files, lost_updates
  lost              what is lost with each file that does not match the manifest";

/// Describes the fields of `import snapshot-json --json`.
const SNAPSHOT_JSON: &str = "\
With --json one object:
  session, dir     the new session
  exported_at_us   when the export was taken, in microseconds since 1970
  slices, items, conversations   numbers of slices, items and conversations";

/// Import runs and conversations of other tools.
#[derive(Clone, Debug, Subcommand)]
pub enum Args {
    /// Import a tau-bench file: an array of runs with `task_id`, `trial` and `traj`
    TauBench(FileArgs),
    /// Import an OpenAI conversation: a JSON array of messages, or one message a line
    Openai(FileArgs),
    /// Import transcripts of Claude Code: NAME.jsonl, with sub-agents in NAME/subagents.
    ///
    /// Every line is kept: `foldlog export --format claude-code` writes the same files. Files that
    /// repeat or continue each other become one session; every other file becomes its own. A
    /// sub-agent becomes a child session of the call that started it, and a rewind becomes a
    /// rollback.
    #[command(after_help = CLAUDE_CODE_JSON)]
    ClaudeCode(FilesArgs),
    /// Import a session's tree of files, written by `foldlog export --format aca`.
    ///
    /// All files are checked against the manifest of the tree first. The new session has a
    /// different id; other differences from the exported session are reported.
    #[command(after_help = ACA_JSON)]
    Aca {
        /// Directory of the session in a tree, or directory whose `.aca` contains one session
        dir: PathBuf,
        /// Directory of the store, created if it does not exist
        #[arg(long, value_name = "DIR")]
        store: PathBuf,
        /// Import the intact files of a damaged tree.
        ///
        /// Without --by and --reason, only reports what they contain, and what is lost with each
        /// damaged or missing file.
        #[arg(long)]
        partial: bool,
        /// Name of the person who imports the intact files
        #[arg(long, value_name = "WHO", value_parser = crate::value_parsers::parse_nonblank, requires_all = ["partial", "reason"])]
        by: Option<String>,
        /// Reason for the import
        #[arg(long, value_name = "WHY", value_parser = crate::value_parsers::parse_nonblank, requires = "by")]
        reason: Option<String>,
    },
    /// Import slices, written by `foldlog export --format snapshot-json` or another program.
    ///
    /// The new session has a different id. Its slices need no types: each keeps its policy and its
    /// exact values. Conversations become records again. Calls are not imported: they remain in
    /// the log of the exported session.
    #[command(after_help = SNAPSHOT_JSON)]
    SnapshotJson(FileArgs),
    /// Import trajectories of SWE-agent: one run a file, with `history`
    SweAgent(FilesArgs),
}

/// Arguments of an import of one file.
#[derive(Clone, Debug, clap::Args)]
pub struct FileArgs {
    /// File to import
    pub file: PathBuf,
    /// Directory of the store, created if it does not exist
    #[arg(long, value_name = "DIR")]
    pub store: PathBuf,
}

/// Arguments of an import of several files.
#[derive(Clone, Debug, clap::Args)]
pub struct FilesArgs {
    /// Files to import
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// Directory of the store, created if it does not exist
    #[arg(long, value_name = "DIR")]
    pub store: PathBuf,
}

impl Command for Args {
    const GROUP: Group = Group::Exchange;
    const ACCESS: Access = Access::Creates;
    const TARGET: Target = Target::Nothing;
    const EXAMPLE: &'static str = "foldlog import claude-code transcript.jsonl --store STORE";

    fn run(self, output: &mut Output<'_>) -> Result<u8> {
        let since = Instant::now();
        match self {
            Args::TauBench(FileArgs { file, store }) => write(&read_tau_bench(&file)?, &store, since, output),
            Args::SweAgent(FilesArgs { files, store }) => {
                let runs: Result<Vec<AgentRun>> = files.iter().map(|file| read_swe_agent(file)).collect();
                write(&runs?, &store, since, output)
            }
            Args::ClaudeCode(FilesArgs { files, store }) => claude_code(&files, &store, since, output),
            Args::Aca { dir, store, partial: true, by, reason } => {
                aca_partly(&dir, &store, by.as_deref().zip(reason.as_deref()), output)
            }
            Args::Aca { dir, store, .. } => aca(&dir, &store, output),
            Args::SnapshotJson(FileArgs { file, store }) => snapshot_json(&file, &store, output),
            Args::Openai(FileArgs { file, store }) => openai(&file, &store, since, output),
        }
    }
}

/// Number of findings of one kind that a person is shown.
const SHOWN_MAX: usize = 20;

fn write(runs: &[AgentRun], store: &Path, since: Instant, output: &mut Output<'_>) -> Result<u8> {
    // The store is created even if there are no runs, so that `sessions` finds it.
    Store::open(store)?;
    let types = types()?;
    let mut written = ImportCounts::default();
    let mut progress = output.progress("importing runs", runs.len() as u64);
    for (done, run) in (1..).zip(runs) {
        written += write_run(store, &types, run)?;
        progress.at(done);
    }
    drop(progress);
    report(written, since, output)
}

/// Imports a file of OpenAI's messages, a JSON array or one object per line, as one conversation in
/// a new session.
///
/// # Errors
///
/// - [`Error::File`](foldlog_view::Error::File) or
///   [`CommandError::Malformed`](crate::CommandError::Malformed) if the file cannot be read or is
///   malformed; then nothing is imported.
/// - [`Error::Engine`](foldlog_view::Error::Engine) if the store cannot be written.
fn openai(file: &Path, store: &Path, since: Instant, output: &mut Output<'_>) -> Result<u8> {
    let text = openai::read(file)?;
    let written = messages(store, file, &text, file.file_name().and_then(|name| name.to_str()))?;
    report(written, since, output)
}

/// Imports transcripts of Claude Code, with their sub-agents, into the store at `store`.
fn claude_code(files: &[PathBuf], store: &Path, since: Instant, output: &mut Output<'_>) -> Result<u8> {
    let imported = import_transcripts(store, files)?;
    let (lines, rewinds, agents) = (imported.lines, imported.rewinds, imported.agents);
    if output.json() {
        output.value(&document! {
            #[serde(flatten)] written: imported.written,
            seconds: since.elapsed().as_secs_f64(), lines, rewinds, agents, findings: imported.findings,
        })?;
        return Ok(HOLDS);
    }
    report(imported.written, since, output)?;
    let (lines, rewinds) = (count_text(lines, "line"), count_text(rewinds, "rewind"));
    output.line(format_args!("{lines}, {rewinds}, {}", count_text(agents, "sub-agent")))?;
    let mut shown: BTreeMap<FindingKind, usize> = BTreeMap::new();
    for finding in &imported.findings {
        let shown = shown.entry(finding.kind).or_default();
        *shown += 1;
        if *shown <= SHOWN_MAX {
            output.line(finding)?;
        }
    }
    let more: usize = shown.values().map(|count| count.saturating_sub(SHOWN_MAX)).sum();
    if more > 0 {
        output.line(format_args!("and {more} more; --json lists all"))?;
    }
    Ok(HOLDS)
}

/// Reports the possible result of importing a tree's intact files. If `by` names an author and
/// a reason, creates a session from them.
fn aca_partly(dir: &Path, store: &Path, by: Option<(&str, &str)>, output: &mut Output<'_>) -> Result<u8> {
    // Read first, so that no store is created for an unreadable tree.
    PartialTree::read(dir, output.tree_limits())?;
    if by.is_some() {
        return from_sound_files(dir, Store::open(store)?, by, output);
    }
    let unmade = |source| crate::CommandError::file(&std::env::temp_dir(), source);
    let nowhere = tempfile::tempdir().map_err(unmade)?;
    from_sound_files(dir, Store::open(nowhere.path())?, None, output)
}

fn from_sound_files(
    dir: &Path,
    store: Store,
    by: Option<(&str, &str)>,
    output: &mut Output<'_>,
) -> Result<u8> {
    let manager = CrashRecoveryManager::of_tree(store.clone(), dir).with_limits(output.tree_limits());
    let strategy = RecoveryStrategy::PartialRecovery;
    let outlook = manager.plan(strategy)?;
    if !output.json() {
        print_outlook(&outlook, output)?;
    }
    if let Some(reason) = outlook.impossible {
        return Err(Error::Impossible { strategy, reason }.into());
    }
    let recovered = by.map(|(by, reason)| manager.recover(strategy, &store, by, reason)).transpose()?;
    if output.json() {
        let session = recovered.map(|recovered| recovered.session.to_string());
        output.value(&document! { session, #[serde(flatten)] outlook })?;
        return Ok(HOLDS);
    }
    match recovered {
        Some(recovered) => output.line(format_args!("session {}", recovered.session))?,
        None => output.note("note: nothing was imported: add --by WHO --reason WHY"),
    }
    Ok(HOLDS)
}

/// Imports the tree of a session, which `foldlog export --format aca` wrote, as a session of the
/// store at `store`.
///
/// # Errors
///
/// - [`CommandError::Tasks`](crate::CommandError::Tasks) if the tree is damaged or missing; then
///   nothing is imported.
/// - [`Error::Engine`](foldlog_view::Error::Engine) if the store cannot be written.
fn aca(dir: &Path, store: &Path, output: &mut Output<'_>) -> Result<u8> {
    let types = foldlog_agent::events::declare(declare(SessionTypes::builder())).build()?;
    // Read first, so that no store is created for an unreadable tree.
    import_tree(dir, output.tree_limits())?;
    let store = Store::open(store)?;
    let imported = import_session(dir, &store, &types, SessionOptions::default(), output.tree_limits())?;
    let ImportedSession { session, exported, differing } = imported;
    let (id, exported_session, dir) = (session.id(), exported.session_id, session.dir().to_owned());
    let tasks = exported.task_tree.tasks.len() as u64;
    let messages = exported.claude_context.conversation_history.messages_len();
    session.close()?;
    if output.json() {
        output.value(&document! { session: id, dir, exported_session, tasks, messages, differing })?;
        return Ok(HOLDS);
    }
    for (id, from) in unfinished_imports(&store)? {
        output.note(format_args!(
            "note: session {id} is left from a killed import of session {}: it has no history, and can be deleted",
            foldlog::escape::text(&from)
        ));
    }
    output.line(format_args!("session {id}, imported from session {exported_session}"))?;
    output.line(format_args!("{}, {}", count_text(tasks, "task"), count_text(messages, "message")))?;
    for part in differing {
        output.line(format_args!("differs from the exported session: {part}"))?;
    }
    output.note(
        "note: its ledger, checkpoints and captures of workspaces were not imported: they remain with the exported session",
    );
    Ok(HOLDS)
}

/// Imports slices that `foldlog export --format snapshot-json` or another program wrote, as a
/// session of the store at `store`. Slices need no types: each keeps its policy and its values.
///
/// # Errors
///
/// - [`Error::File`](foldlog_view::Error::File) if the file cannot be read, and
///   [`Error::Engine`](foldlog_view::Error::Engine) if it is not such an export, or was
///   exported while calls were open. Then nothing is imported.
/// - [`Error::Engine`](foldlog_view::Error::Engine) if the store cannot be written.
fn snapshot_json(file: &Path, store: &Path, output: &mut Output<'_>) -> Result<u8> {
    let text = openai::read(file)?;
    // Read first, so that no store is created for an invalid file.
    let export = Export::from_json(&text)?;
    drop(text);
    let options = ImportOptions { keep_unknown: true, ..ImportOptions::default() };
    let types = SessionTypes::builder().build()?;
    let session = Store::open(store)?.import(&export, &types, options)?;
    let state = session.dynamic().state()?;
    let (id, dir, exported_at_us) = (session.id(), session.dir().to_owned(), export.created_at_us()?);
    let slices = state.slices.len() as u64;
    let items = state.slices.values().map(|slice| slice.items.len() as u64).sum();
    let conversations = session.conversation().evaluations().len() as u64;
    session.close()?;
    let document =
        document! { session: id, dir: PathField(&dir), exported_at_us, slices, items, conversations };
    output.print(&document, |output| {
        output.line(format_args!("session {id}, exported at {}", time_text(exported_at_us)))?;
        let (slices, items) = (count_text(slices, "slice"), count_text(items, "item"));
        output.line(format_args!("{slices}, {items}, {}", count_text(conversations, "conversation")))
    })?;
    Ok(HOLDS)
}

fn report(written: ImportCounts, since: Instant, output: &mut Output<'_>) -> Result<u8> {
    let seconds = since.elapsed().as_secs_f64();
    output.print(&document! { #[serde(flatten)] written, seconds }, |output| {
        let ImportCounts { sessions, messages, records, rollbacks, log_bytes } = written;
        let (sessions, messages) = (count_text(sessions, "session"), count_text(messages, "message"));
        let (records, rollbacks) = (count_text(records, "record"), count_text(rollbacks, "rollback"));
        output.line(format_args!(
            "{sessions}, {messages}, {records}, {rollbacks}, {log_bytes} bytes in {seconds:.1} s"
        ))
    })?;
    Ok(HOLDS)
}
