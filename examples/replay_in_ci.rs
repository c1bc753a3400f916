//! Replays a host over the log of its earlier run, as a CI job does before a release. The same host
//! agrees with the log. For a changed host, the replay reports the first record that differs. Then
//! the changed host runs for real from the middle of the recorded run, in a fork.
//!
//! `cargo run --bin replay_in_ci`

use std::path::Path;
use std::process::{Command, abort};
use std::sync::Arc;
use std::{env, fs, thread};

use foldlog::filesystem::{Filesystem, HostFilesystemOptions};
use foldlog::inspect::LogReader;
use foldlog::replay::Replay;
use foldlog::tools::{
    ExecuteOptions, Tool, ToolCall, ToolContext, ToolError, ToolRegistry, ToolResult, ToolRunner,
};
use foldlog::{
    Event, ExecutionState, Idempotency, ResourceRegistry, SequenceNumber, Session, SessionOptions,
    SessionTypes, Slice, Store,
};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

#[derive(Clone, serde::Serialize, serde::Deserialize)]
struct Read {
    letter: String,
}

impl Event for Read {
    const NAME: &'static str = "mail.read";
}

struct Mail;

impl Slice for Mail {
    const NAME: &'static str = "mail";
    type Item = Read;
}

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct Page {
    title: String,
}

/// Writes the page of the day. The process that is to be killed dies within it.
struct Publish {
    dies: bool,
}

impl Tool for Publish {
    const NAME: &'static str = "publish";
    type Parameters = Page;
    type Output = ();

    fn idempotency(&self) -> Idempotency {
        Idempotency::Natural
    }

    fn call(&self, page: Page, context: &ToolContext) -> std::result::Result<ToolResult<()>, ToolError> {
        let files = context.resources().get::<dyn Filesystem>().ok_or(ToolError::failed("no workspace"))?;
        files.write("page", page.title.as_bytes())?;
        if self.dies {
            abort()
        }
        Ok(ToolResult::ok("published", ()))
    }
}

fn types() -> foldlog::Result<SessionTypes> {
    SessionTypes::builder().slice::<Mail>().append_all::<Mail>().build()
}

/// The host: recovers open calls, reads its mail in one thread, and publishes in another. A live
/// run and a replay call it alike. At the end of a recorded process's records, its next write
/// fails, and it returns the error.
fn host(session: &Session, workspace: &Path, tool: Publish, title: &str) -> Result<()> {
    let files = session.open_workspace(workspace, HostFilesystemOptions::default())?;
    let resources = ResourceRegistry::builder().filesystem(Arc::new(files)).build()?;
    let state = ExecutionState::new(session.clone(), resources);
    let runner = ToolRunner::new(state, ToolRegistry::new().with(tool));
    // A call that the previous process left open runs again here, since its tool allows it.
    let recovered = runner.recover(&ExecuteOptions::default())?;

    // Threads that write concurrently use separate lanes: the records of a lane have a fixed order.
    let mailbox = session.lane("mailbox");
    thread::scope(|scope| {
        let reading = scope.spawn(move || -> Result<()> {
            while mailbox.view::<Mail>()?.len() < 3 {
                // External input goes through the session, so a replay takes it from the log.
                let letter =
                    mailbox.inputs().observe("letter", || format!("received by {}", std::process::id()))?;
                mailbox.dispatch(Read { letter })?;
            }
            Ok(())
        });
        if recovered.is_empty() {
            let today = session.inputs().now()?.date_naive();
            let arguments = serde_json::json!({ "title": format!("{title} of {today}") }).to_string();
            runner.execute(&ToolCall::new(Publish::NAME, arguments), &ExecuteOptions::default())?;
        }
        reading.join().map_err(|_| "the mailbox panicked")?
    })
}

fn main() -> Result<()> {
    if let Some(directory) = env::args_os().nth(1) {
        let directory = Path::new(&directory);
        let session = Store::open(directory.join("store"))?.create(&types()?)?;
        return host(&session, &directory.join("workspace"), Publish { dies: true }, "news");
    }

    // The live run: one process dies within its call, and the next one continues.
    let directory = tempfile::tempdir()?;
    let workspace = directory.path().join("workspace");
    fs::create_dir(&workspace)?;
    Command::new(env::current_exe()?).arg(directory.path()).status()?;
    let store = Store::open(directory.path().join("store"))?;
    let id = store.session_ids()?.into_iter().next().ok_or("there is no session")?;
    let session = store.open_session(id, &types()?)?;
    host(&session, &workspace, Publish { dies: false }, "news")?;
    let dir = session.dir().to_owned();
    session.close()?;

    // The replay needs only the log and the objects that it names. The workspace is another
    // directory, which is not changed.
    let elsewhere = tempfile::tempdir()?;
    let replayed = |session: Session| host(&session, elsewhere.path(), Publish { dies: false }, "news");
    let report = foldlog_replay::assert_host_replays(&dir, &types()?, replayed);
    println!("the same host agrees: {} processes", report.processes);

    // The replay of a changed version reports the first difference.
    let log = LogReader::open(&dir)?;
    let changed = |session: Session| host(&session, elsewhere.path(), Publish { dies: false }, "gossip");
    let types = types()?;
    let Err(diverged) = Replay::new(&log, &types).run(changed) else { return Err("nothing differs".into()) };
    println!("a changed one does not: {diverged}");

    // In a fork, the changed version runs for real from before the recorded call on. The recorded
    // session is not changed.
    let call = log.ledger()?.into_iter().next().ok_or("no call is recorded")?.operation;
    let before = SequenceNumber::from(call).saturating_sub(1);
    let replay = Replay::new(&log, &types).through(before);
    let live = replay.go_live(&store, SessionOptions::default(), |session| {
        changed(session.clone())?;
        Ok::<_, Box<dyn std::error::Error + Send + Sync>>(session)
    })?;
    println!("letters of the fork: {}", live?.view::<Mail>()?.len());
    println!("its page: {}", fs::read_to_string(elsewhere.path().join("page"))?);
    Ok(())
}
