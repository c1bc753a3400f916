//! Measures readers whose time must grow as their log does, and no faster: each at one size, and at four times that size.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::{Path, PathBuf};

use foldlog::log::SegmentSizes;
use foldlog::{SessionOptions, Store, StoreOptions};
use foldlog_codec::Kind;
use foldlog_codec::body::{
    Action, Binding, BuiltIn, Declare, Dispatch, EventDeclaration, Opened, Outcome, Payload, Policy,
    Rollback, SliceDeclaration, ToolBegin, ToolEnd,
};
use foldlog_tests::forge::Forge;
use foldlog_tests::verbs::foldlog;

use crate::measure::{AtMost, Result, Round, Row, take_turns, timed};
use crate::subject::{append_types, fill};

const FEW: u64 = 2_000;
const MANY: u64 = 4 * FEW;

const FEW_SEGMENTS: u64 = 64;
const MANY_SEGMENTS: u64 = 4 * FEW_SEGMENTS;

const ROUNDS: usize = 3;

/// Twice the growth of the log, for each.
const GROWTH: AtMost = AtMost::Ratio(2.0);

pub fn growth(dir: &Path) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    let undone = [FEW, MANY].map(|steps| undone(&dir.join(format!("undone {steps}")), steps));
    rows.push(row("replay --thorough, of rollbacks one step further back each", undone, |session| {
        Ok(vec!["replay".into(), session, "--thorough".into()])
    })?);
    let unsettled = [FEW, MANY].map(|calls| unsettled(&dir.join(format!("unsettled {calls}")), calls));
    rows.push(row("recover, of calls that wait for a decision", unsettled, |session| {
        Ok(vec!["recover".into(), session])
    })?);
    let segments = || {
        [FEW_SEGMENTS, MANY_SEGMENTS].map(|count| segmented(&dir.join(format!("segments {count}")), count))
    };
    rows.push(row("recover --strategies, of segments", segments(), |session| {
        Ok(vec!["recover".into(), session, "--strategies".into()])
    })?);
    let mut copies = 0;
    rows.push(row("salvage, of segments", segments(), |session| {
        copies += 1;
        let to = dir.join(format!("copy {copies}")).display().to_string();
        Ok(vec!["salvage".into(), session, "--to".into(), to])
    })?);
    Ok(rows)
}

type Made = Result<(PathBuf, u64)>;

/// Runs a verb over two sessions, of which the second is four times as long.
fn row(
    name: &str,
    [few, many]: [Made; 2],
    mut words: impl FnMut(String) -> Result<Vec<String>>,
) -> Result<Row> {
    let (few, many) = (few?, many?);
    let words = std::cell::RefCell::new(&mut words);
    let run = |(session, size): &(PathBuf, u64)| -> Result<Round> {
        let words = (words.borrow_mut())(session.display().to_string())?;
        timed(*size, || match foldlog(words) {
            ran if ran.code == 0 => Ok(()),
            ran => Err(format!("exit code {}: {}", ran.code, ran.stderr).into()),
        })
    };
    let [smaller, larger] = take_turns(ROUNDS, [&mut || run(&few), &mut || run(&many)])?;
    Ok(Row::beside("growth", name, many.1, larger, smaller).at_most(GROWTH))
}

/// Makes the log of a session that is rolled back from its last step on by one step more each.
fn undone(dir: &Path, steps: u64) -> Made {
    let mut log = ForgedLog::new(dir)?;
    let data = foldlog::Value::from("step").encode();
    let first = log.forge.next();
    for _ in 0..steps {
        let action = Action::Event { event: 0, data: Payload::new(&data) };
        log.record(Kind::DISPATCH, &Dispatch { action, effects: None }.encode())?;
    }
    for to in (first..first + steps - 1).rev() {
        log.record(Kind::ROLLBACK, &Rollback { to: to.into(), preserve_logs: true }.encode())?;
    }
    log.done(steps)
}

/// Makes a log of calls that were interrupted, about which nobody has decided.
fn unsettled(dir: &Path, calls: u64) -> Made {
    let mut log = ForgedLog::new(dir)?;
    let arguments = foldlog::Value::from("{}").encode();
    for _ in 0..calls {
        let begin = log.forge.next();
        log.record(Kind::TOOL_BEGIN, &ToolBegin::new("tool", Payload::new(&arguments)).encode())?;
        let end = ToolEnd { rolls_back: true, ..ToolEnd::new(begin.into(), "tool", Outcome::Interrupted) };
        log.record(Kind::TOOL_END, &end.encode())?;
    }
    log.done(calls)
}

/// A log that is written frame for frame.
struct ForgedLog {
    dir: PathBuf,
    file: BufWriter<File>,
    forge: Forge,
}

impl ForgedLog {
    fn new(dir: &Path) -> Result<ForgedLog> {
        let dir = dir.join("sessions").join(Forge::SESSION.to_string());
        std::fs::create_dir_all(&dir)?;
        let file = BufWriter::new(File::create(dir.join("0000000000.seg"))?);
        let mut log = ForgedLog { dir, file, forge: Forge::default() };
        log.file.write_all(&Forge::head())?;
        let opened = Opened { session: Forge::SESSION, seed: 1, tags: BTreeMap::new(), parent: None };
        log.record(Kind::OPENED, &opened.encode())?;
        let bindings = vec![Binding { slice: 1, built_in: BuiltIn::Append }];
        let (name, version, implicit) = ("step".to_owned(), 1, false);
        let event = EventDeclaration { id: 0, name, version, bindings, implicit };
        let slices = [("tool_invoked", Policy::Log), ("steps", Policy::State)].into_iter().zip(0..);
        let slices = slices.map(|((name, policy), id)| SliceDeclaration {
            id,
            name: name.to_owned(),
            policy,
            item: "step".to_owned(),
        });
        log.record(Kind::DECLARE, &Declare { events: vec![event], slices: slices.collect() }.encode())?;
        Ok(log)
    }

    fn record(&mut self, kind: Kind, body: &[u8]) -> Result<()> {
        Ok(self.file.write_all(&self.forge.frame(kind, body))?)
    }

    fn done(mut self, size: u64) -> Made {
        self.file.flush()?;
        Ok((self.dir, size))
    }
}

/// Makes a session of so many segments, of which each holds little.
fn segmented(dir: &Path, segments: u64) -> Made {
    let options = StoreOptions {
        segments: SegmentSizes { first_bytes: 64 << 10, max_bytes: 64 << 10, ..SegmentSizes::default() },
        ..StoreOptions::default()
    };
    let store = Store::open_with(dir, options)?;
    let session = store.create_with(&append_types()?, SessionOptions::default())?;
    fill(&session, 0..segments * 256)?;
    let dir = session.dir().to_owned();
    session.close()?;
    let found = std::fs::read_dir(&dir)?
        .flatten()
        .filter(|entry| entry.path().extension().is_some_and(|ext| ext == "seg"));
    Ok((dir, found.count() as u64))
}
