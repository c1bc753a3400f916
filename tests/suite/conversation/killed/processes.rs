//! Really killed processes, over real files: each is resumed by another process. Between two lives
//! the conversation is sometimes rolled back, forked or cancelled.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use foldlog::conversation::{Conversation, ResumePoint};
use foldlog::inspect::LogReader;
use foldlog::{Durability, Generator, SessionOptions, Store, StoreOptions};
use foldlog_agent::EvaluateOptions;
use foldlog_test_support::child;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::cuts::{LEVELS, Whole, uncut};
use super::generated::Generated;
use super::host::{EVALUATION, Host, Outside, check_sendable, types};
use super::turned::{cancel, place, roll_back};
use super::{Held, page_after, said};

/// The task of one process.
#[derive(Clone, Serialize, Deserialize)]
struct Life {
    directory: PathBuf,
    session: Uuid,
    seed: u64,
    /// The index of the durability in the list of all.
    level: usize,
    has_tools: bool,
    /// The number of records after which the first evaluation is cancelled.
    cancelled_behind: Option<u64>,
}

impl Life {
    fn durability(&self) -> Durability {
        LEVELS[self.level]
    }

    fn store(&self) -> Store {
        let options = StoreOptions { durability: self.durability(), ..StoreOptions::default() };
        Store::open_with(self.directory.join("store"), options).unwrap()
    }

    fn outside(&self) -> Outside {
        Outside(self.directory.join("outside"))
    }

    fn host(&self, says: &Arc<Generated>) -> Host {
        let session = self.store().open_session(self.session, &types()).unwrap();
        Host::new(session, self.outside(), Arc::clone(says))
    }

    fn dir(&self) -> PathBuf {
        self.store().session_dir(self.session)
    }
}

/// Opens the session, recovers and resumes it, and reports each record.
#[test]
#[ignore = "a part of the tests below"]
fn part_of_a_conversation() {
    let Some(argument) = child::argument() else { return };
    let life: Life = serde_json::from_str(&argument).unwrap();
    let host = life.host(&Arc::new(Generated::from_seed(life.seed)));
    let _ = host.session().log().subscribe(|record| child::tell("told", record.sequence()));
    assert!(host.recover(life.has_tools));
    if let Some(records) = life.cancelled_behind {
        cancel(&host, records);
    }
    host.evaluate(EvaluateOptions::default()).unwrap();
    host.session().clone().close().unwrap();
    child::tell("done", life.seed);
}

/// Reads the conversation without opening the session, and returns it with the number of records.
fn read(dir: &Path) -> (Option<Conversation>, u64) {
    let reader = LogReader::open(dir).unwrap();
    let records = reader.records_len();
    (reader.conversation_at(EVALUATION, records - 1).unwrap(), records)
}

/// Counts of the events in these conversations.
#[derive(Debug, Default)]
struct Counts {
    kills: u64,
    within_calls: u64,
    finished: u64,
    rollbacks: u64,
    forks: u64,
    cancels: u64,
}

/// Runs one process, and kills it once it has reported this many records, or lets it end. Returns
/// whether it finished.
fn live(life: &Life, killed_behind: Option<u64>, at: &str) -> bool {
    let (conversation, _) = read(&life.dir());
    let held = Held::of(conversation.as_ref(), &life.outside());
    let (_, module) = module_path!().split_once("::").unwrap();
    let part = format!("{module}::part_of_a_conversation");
    let mut process = child::start(&part, &serde_json::to_string(life).unwrap());
    let (mut told, mut done, mut heard) = (0, false, 0);
    while killed_behind.is_none_or(|behind| heard < behind) {
        let Some(line) = process.line() else { break };
        if let Some(sequence) = line.strip_prefix("@told ") {
            (told, heard) = (sequence.parse().unwrap(), heard + 1);
        }
        done |= line.starts_with("@done ");
    }
    let is_killed = killed_behind.is_some_and(|behind| heard >= behind);
    if is_killed {
        process.kill();
    }
    while let Some(line) = process.line() {
        told = line.strip_prefix("@told ").map_or(told, |sequence| sequence.parse().unwrap_or(told));
        done |= line.starts_with("@done ");
    }
    assert!(done || is_killed, "{at}: the process failed");
    let (conversation, records) = read(&life.dir());
    assert!(told < records, "{at}: the process was told of record {told}, and {records} are there");
    held.check(conversation.as_ref(), &life.outside(), at);
    done
}

/// Recovers the session in this process, rolls back, forks or cancels, and returns the session that
/// continues.
fn turn(
    life: &Life,
    says: &Arc<Generated>,
    draw: &mut Generator,
    counts: &mut Counts,
    at: &str,
) -> Option<Uuid> {
    let host = life.host(says);
    counts.within_calls += u64::from(host.session().calls().is_interrupted());
    let held = Held::of(host.conversation().as_ref(), &host.outside);
    assert!(host.recover(draw.next_below(2) == 0), "{at}: it cannot be recovered");
    held.check(host.conversation().as_ref(), &host.outside, at);
    if let Some(conversation) = host.conversation() {
        check_sendable(&conversation, &host.point(), at);
    }
    let mut fork = None;
    match draw.next_below(3) {
        0 => {
            roll_back(&host, draw, at);
            counts.rollbacks += 1;
        }
        1 => {
            let place = place(host.session(), draw);
            let forked = place
                .map(|place| life.store().fork(life.session, place, &types(), SessionOptions::default()));
            if let Some(Ok(session)) = forked {
                fork = Some(session.id());
                session.close().unwrap();
                counts.forks += 1;
            }
        }
        _ => {}
    }
    host.session().clone().close().unwrap();
    fork
}

/// Checks a conversation that a process reported as finished.
fn check_finished(life: &Life, says: &Arc<Generated>, whole: &Whole, is_whole: bool, at: &str) {
    let host = life.host(says);
    let conversation = host.conversation().unwrap();
    let finished = Held::of(Some(&conversation), &host.outside);
    finished.check_finished(&conversation, says, &host.outside, at);
    assert_eq!(host.point(), ResumePoint::Complete, "{at}");
    assert_eq!(host.page(), page_after(&conversation), "{at}: STATE is not what the calls did");
    check_sendable(&conversation, &host.point(), at);
    if is_whole {
        assert_eq!((said(&conversation), host.page()), (whole.said.clone(), whole.page.clone()), "{at}");
    }
    host.session().clone().close().unwrap();
}

/// Runs one conversation from start to end, in as many lives as necessary.
fn hold(seed: u64, counts: &mut Counts) {
    let (says, mut draw) = (Arc::new(Generated::from_seed(seed)), Generator::from_seed(seed));
    let whole = uncut(&says);
    let directory = tempfile::tempdir().unwrap();
    let level = usize::try_from(seed).unwrap() % LEVELS.len();
    let (directory_path, has_tools) = (directory.path().to_owned(), false);
    let mut life = Life {
        directory: directory_path,
        session: Uuid::nil(),
        seed,
        level,
        has_tools,
        cancelled_behind: None,
    };
    let session = life.store().create(&types()).unwrap();
    life.session = session.id();
    session.close().unwrap();
    let (mut at, mut left, mut is_whole) =
        (format!("seed {seed}, {:?}", life.durability()), Vec::new(), true);
    for number in 0.. {
        life.has_tools = draw.next_below(2) == 0;
        life.cancelled_behind = (draw.next_below(8) == 0).then(|| 1 + draw.next_below(20));
        counts.cancels += u64::from(life.cancelled_behind.is_some());
        is_whole &= life.cancelled_behind.is_none();
        // Later lives last longer, so that each conversation ends.
        let behind = draw.next_below(1 + whole.records.min(8 << number.min(6)));
        at.push_str(&format!(", killed behind {behind}"));
        if live(&life, Some(behind), &at) {
            break;
        }
        counts.kills += 1;
        if draw.next_below(2) == 0 {
            continue;
        }
        if let Some(fork) = turn(&life, &says, &mut draw, counts, &at) {
            at.push_str(", forked");
            left.push((life.clone(), is_whole));
            life.session = fork;
        }
    }
    counts.finished += 1;
    check_finished(&life, &says, &whole, is_whole, &at);
    for (mut life, is_whole) in left {
        life.cancelled_behind = None;
        assert!(live(&life, None, &at), "{at}: the parent of the fork");
        check_finished(&life, &says, &whole, is_whole, &at);
        counts.finished += 1;
    }
}

/// Processes are killed at any moment, and the next one continues.
#[test]
fn conversations_whose_processes_are_killed_are_finished_by_others() {
    let wanted =
        std::env::var("FOLDLOG_CONVERSATION_KILLS").ok().and_then(|count| count.parse().ok()).unwrap_or(10);
    let mut counts = Counts::default();
    for seed in 500.. {
        hold(seed, &mut counts);
        if counts.kills >= wanted {
            break;
        }
    }
    println!("{counts:?}");
}
