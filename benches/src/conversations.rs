//! Measures conversations: recording turns, resuming a long conversation, and printing one.

use std::ffi::OsString;
use std::path::Path;

use foldlog::conversation::{NewAnswer, NewInput, NewRequest, ResumePoint, ToolCallRecord};
use foldlog::tools::{
    ExecuteOptions, Tool, ToolCall, ToolContext, ToolError, ToolRegistry, ToolResult, ToolRunner,
};
use foldlog::{
    Durability, ExecutionState, Idempotency, ResourceRegistry, Session, SessionTypes, Store, StoreOptions,
};
use foldlog_cli::Output;
use schemars::JsonSchema;
use serde::Deserialize;
use uuid::Uuid;

use crate::limits;
use crate::measure::{AtMost, BenchRow, ROUNDS, Result, Round, take_turns, timed};
use crate::open::Images;

/// Number of turns of a round at `Process`, and at `Boundary`.
const TURNS: u64 = 2_000;
const TURNS_SYNCED: u64 = 40;

/// Records of a turn with two tools that `Boundary` makes durable: the answer, the start and end
/// records of each call, the turn.
const SYNCS: u64 = 6;

/// Bytes of a substitute for these records, with its frame.
const RECORD: usize = 128;

/// Number of turns of the resumed conversation.
const LONG: u64 = 1_000;

/// Number of messages of the printed conversation.
const MESSAGES: u64 = 100_000;

const TRANSCRIPT_ROUNDS: usize = 3;

const EVALUATION: &str = "measured";

#[derive(Deserialize, JsonSchema)]
struct EmptyParameters {}

struct Empty;

impl Tool for Empty {
    const NAME: &'static str = "empty";
    type Parameters = EmptyParameters;
    type Output = ();

    fn idempotency(&self) -> Idempotency {
        Idempotency::Natural
    }

    fn call(&self, _: EmptyParameters, _: &ToolContext) -> std::result::Result<ToolResult<()>, ToolError> {
        Ok(ToolResult::ok("done", ()))
    }
}

pub fn conversation(dir: &Path) -> Result<Vec<BenchRow>> {
    let mut rows = turns(dir)?;
    rows.extend(resume(&dir.join("long"))?);
    rows.push(transcript(&dir.join("transcript"))?);
    Ok(rows)
}

fn store(path: &Path, durability: Durability) -> Result<Store> {
    let options = StoreOptions { durability, image_bytes_min: 64 << 10, ..StoreOptions::default() };
    Ok(Store::open_with(path, options)?)
}

fn types() -> Result<SessionTypes> {
    Ok(SessionTypes::builder().build()?)
}

fn runner(session: &Session) -> Result<ToolRunner> {
    let state = ExecutionState::new(session.clone(), ResourceRegistry::builder().build()?);
    Ok(ToolRunner::new(state, ToolRegistry::new().with(Empty)))
}

/// Records a turn: the request, its answer with two calls, the calls, and the turn itself.
/// `recorded` takes the number of records since its last call that `Boundary` would have made
/// durable.
fn turn(runner: &ToolRunner, recorded: &mut dyn FnMut(u64) -> Result<()>) -> Result<()> {
    let session = runner.state().session();
    let evaluation_id = || EVALUATION.to_owned();
    let request = session.conversation().record_request(&NewRequest {
        evaluation_id: evaluation_id(),
        attempt: 1,
        ..NewRequest::default()
    })?;
    let record = |call_id: &str| ToolCallRecord {
        call_id: call_id.to_owned(),
        name: Empty::NAME.to_owned(),
        arguments: "{}".to_owned(),
    };
    let answer = session.conversation().record_answer(&NewAnswer {
        evaluation_id: evaluation_id(),
        request: Some(request),
        content: Some("Both of them are to be looked at first.".to_owned()),
        calls: vec![record("call_1"), record("call_2")],
        stop: Some("tool_calls".to_owned()),
        ..NewAnswer::default()
    })?;
    recorded(1)?;
    for (ordinal, call_id) in [(0, "call_1"), (1, "call_2")] {
        let call = ToolCall::new(Empty::NAME, "{}").with_id(call_id).with_origin(answer, ordinal);
        runner.execute(&call, &ExecuteOptions::default())?;
        recorded(2)?;
    }
    session.conversation().record_turn(EVALUATION, false)?;
    recorded(1)
}

/// Makes a closed session with a conversation of this many turns. Returns its id, and the time of a
/// turn.
fn held(store: &Store, turns: u64, recorded: &mut dyn FnMut(u64) -> Result<()>) -> Result<(Uuid, Round)> {
    let session = store.create(&types()?)?;
    let id = session.id();
    session.conversation().record_input(&NewInput::user(EVALUATION, "What is there to be done?"))?;
    let runner = runner(&session)?;
    let round = timed(turns, || (0..turns).try_for_each(|_| turn(&runner, recorded)))?;
    drop(runner);
    session.close()?;
    Ok((id, round))
}

fn turns(dir: &Path) -> Result<Vec<BenchRow>> {
    let process = store(&dir.join("process"), Durability::Process)?;
    let boundary = store(&dir.join("boundary"), Durability::Boundary)?;
    let measured =
        |store: &Store, turns: u64, recorded: &mut dyn FnMut(u64) -> Result<()>| -> Result<Round> {
            let (id, round) = held(store, turns, recorded)?;
            store.delete(id)?;
            Ok(round)
        };
    let records = SYNCS * TURNS_SYNCED;
    let file = limits::filled(&dir.join("limit"), records * RECORD as u64)?;
    let sync = |place: u64| -> Result<()> {
        Ok(limits::write_and_sync(&file, &[1; RECORD], place % records * RECORD as u64)?)
    };
    let [unsynced] = take_turns(ROUNDS, [&mut || measured(&process, TURNS, &mut |_| Ok(()))])?;
    let mut synced = 0;
    let [durable, limit, apart] = take_turns(
        ROUNDS,
        [
            &mut || measured(&boundary, TURNS_SYNCED, &mut |_| Ok(())),
            &mut || timed(TURNS_SYNCED, || (0..records).try_for_each(sync)),
            &mut || {
                measured(&process, TURNS_SYNCED, &mut |count| {
                    synced += count;
                    (synced - count..synced).try_for_each(sync)
                })
            },
        ],
    )?;
    let row = |subject, param, measured| BenchRow::beside("conversation", subject, param, measured, limit);
    Ok(vec![
        BenchRow::alone("conversation", "turn with two tools", "Process", unsynced)
            .at_most(AtMost::Ns(15_000.0)),
        row("turn with two tools beside its six syncs", "Boundary", durable).at_most(AtMost::Ratio(1.2)),
        row("turn with two tools and the limit's six syncs within it", "Process", apart),
    ])
}

/// Measures opening a session and finding where its conversation continues, until its messages are
/// available.
fn resume(dir: &Path) -> Result<Vec<BenchRow>> {
    let store = store(dir, Durability::Process)?;
    let (id, _) = held(&store, LONG, &mut |_| Ok(()))?;
    let images = Images::keep(&store.session_dir(id), dir.join("images"))?;
    let types = types()?;
    let resumed = |reads: bool| -> Result<Round> {
        let mut session = None;
        let round = timed(1, || {
            let opened = store.open_session(id, &types)?;
            if opened.conversation().resume(Some(EVALUATION))?.point != ResumePoint::AwaitProvider {
                return Err("the conversation does not go on with the provider".into());
            }
            if reads {
                let conversation =
                    opened.conversation().read(EVALUATION)?.ok_or("there is no conversation")?;
                std::hint::black_box(conversation.sent_messages());
            }
            session = Some(opened);
            Ok(())
        });
        drop(session);
        round
    };
    let [image, sent, fold] = take_turns(
        ROUNDS,
        [
            &mut || {
                images.put()?;
                resumed(false)
            },
            &mut || {
                images.put()?;
                resumed(true)
            },
            &mut || {
                images.take_away()?;
                resumed(false)
            },
        ],
    )?;
    let param = format!("{LONG} turns");
    Ok(vec![
        BenchRow::beside(
            "conversation",
            "open and resume with an image, beside folding all",
            &param,
            image,
            fold,
        ),
        BenchRow::alone("conversation", "open and resume with an image, and its messages", &param, sent),
        BenchRow::alone("conversation", "open and resume by folding all", &param, fold),
    ])
}

/// Measures the verb `transcript`, in this process.
fn transcript(dir: &Path) -> Result<BenchRow> {
    let store = store(dir, Durability::Process)?;
    let session = store.create(&types()?)?;
    for number in 0..MESSAGES / 2 {
        session
            .conversation()
            .record_input(&NewInput::user(EVALUATION, format!("What about number {number}, and why?")))?;
        session.conversation().record_answer(&NewAnswer {
            evaluation_id: EVALUATION.to_owned(),
            content: Some(format!("Number {number} is as it should be, since nothing speaks against it.")),
            ..NewAnswer::default()
        })?;
    }
    let path = session.dir().to_owned();
    session.close()?;
    let mut printed = || -> Result<Round> {
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        let child = |_: &Path, _: Uuid| Err(std::io::Error::other("nothing here runs a child"));
        let round = timed(MESSAGES, || {
            let mut output = Output::new(&mut stdout, &mut stderr, &child);
            let arguments: [OsString; 5] = [
                "foldlog".into(),
                "transcript".into(),
                path.clone().into(),
                "--format".into(),
                "openai".into(),
            ];
            match foldlog_cli::run(arguments, &mut output) {
                0 => Ok(()),
                code => Err(format!("`transcript` ended with {code}").into()),
            }
        });
        round.map_err(|error| format!("{error}: {}", String::from_utf8_lossy(&stderr)).into())
    };
    let [printed] = take_turns(TRANSCRIPT_ROUNDS, [&mut printed])?;
    Ok(BenchRow::alone("conversation", "transcript", format!("{MESSAGES} messages"), printed))
}
