//! Replays of hosts over the records of their processes, wherever these ended.

use std::collections::BTreeMap;
use std::sync::Arc;

use foldlog::inspect::LogReader;
use foldlog::replay::{Replay, ReplayReport};
use foldlog::{Durability, Generator, SequenceNumber, Session};
use foldlog_agent::EvaluateOptions;

use super::cuts::{Cut, Desk, uncut};
use super::generated::Generated;
use super::host::{Host, Outside, types};
use super::seeds;

/// The start of each process that wrote records: whether it recovered with its tools, or `None` if
/// it had nothing to recover.
type Lives = BTreeMap<Option<SequenceNumber>, Option<bool>>;

/// Cuts a conversation a few times, and returns how its processes started.
fn live(desk: &mut Desk, records: u64, draw: &mut Generator) -> Lives {
    let mut lives = Lives::from([(desk.host.session().log().position(), None)]);
    for life in 0..1 + draw.next_below(3) {
        let cut =
            if draw.next_below(2) == 0 { Cut::Behind } else { Cut::Within(draw.next_below(16) as usize) };
        desk.end_behind(1 + draw.next_below(records), cut);
        let has_tools = draw.next_below(2) == 0;
        if life > 0 {
            lives.insert(desk.host.session().log().position(), Some(has_tools));
        }
        run(&desk.host, (life > 0).then_some(has_tools));
        desk.open(cut, "replayed");
    }
    lives.insert(desk.host.session().log().position(), Some(true));
    run(&desk.host, Some(true));
    lives
}

/// Performs the steps of each process.
fn run(host: &Host, recovers: Option<bool>) {
    if recovers.is_none_or(|has_tools| host.recover(has_tools)) {
        let _ = host.evaluate(EvaluateOptions::default());
    }
}

fn replayed(desk: &Desk, lives: &Lives, outside: &Outside, says: &Arc<Generated>) -> ReplayReport {
    let log = LogReader::open_on(Arc::new(desk.disk.process()), desk.host.session().dir()).unwrap();
    let host = |session: Session| {
        let recovers = lives[&session.log().position()];
        run(&Host::new(session, outside.clone(), Arc::clone(says)), recovers);
    };
    Replay::new(&log, &types()).run(host).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn a_host_does_the_same_again_over_what_its_processes_wrote_and_neither_asks_nor_runs_anything() {
    let (mut compared, mut processes) = (0, 0);
    for seed in 700..700 + seeds(24) {
        let says = Arc::new(Generated::from_seed(seed));
        let whole = uncut(&says);
        let mut draw = Generator::from_seed(seed + 1);
        let mut desk = Desk::new(Durability::Process, &says);
        let lives = live(&mut desk, whole.records, &mut draw);
        desk.check_equals(&whole, &format!("seed {seed}"));
        let directory = tempfile::tempdir().unwrap();
        let outside = Outside(directory.path().join("outside"));
        let report = replayed(&desk, &lives, &outside, &says);
        assert!(!outside.0.exists(), "seed {seed}: a tool ran, or the provider was asked");
        compared += report.compared;
        processes += report.processes;
    }
    println!("{compared} records compared, of {processes} processes");
    assert!(processes > seeds(24), "hardly any process was cut");
}
