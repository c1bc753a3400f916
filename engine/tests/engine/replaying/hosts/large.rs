//! Events in objects, too large for a record, are compared like others.

use foldlog::inspect::LogReader;
use foldlog::replay::Replay;
use foldlog::{Event, Session, SessionTypes, Slice, SliceOp};
use serde::{Deserialize, Serialize};

use super::host::Stored;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Answered {
    text: String,
    took_us: u64,
}

impl Event for Answered {
    const NAME: &'static str = "answered";
    const NOT_COMPARED: &'static [&'static str] = &["$.event.took_us", "$.added[*].took_us"];
}

/// A custom reducer makes each item differ from its event's payload.
struct Slowest;

impl Slice for Slowest {
    const NAME: &'static str = "slowest";
    type Item = Answered;
}

fn types() -> SessionTypes {
    let slowest =
        SessionTypes::builder().slice::<Slowest>().reducer::<Slowest, Answered>(|_, answered, _| {
            Ok(SliceOp::Append(Answered { text: format!("{}.", answered.text), ..answered.clone() }))
        });
    slowest.build().unwrap()
}

/// Records events, and replays a host that produces others. Returns the paths of differing values.
fn replayed(recorded: &[(&str, u64)], produced: &[(&str, u64)], len: usize) -> Vec<String> {
    let stored = Stored::new();
    let session = stored.store().create(&types()).unwrap();
    let host = |session: &Session, all: &[(&str, u64)]| {
        all.iter().try_for_each(|(text, took_us)| {
            let text = format!("{}{text}", "x".repeat(len));
            session.dispatch(Answered { text, took_us: *took_us }).map(drop)
        })
    };
    host(&session, recorded).unwrap();
    let objects = session.dir().join("objects");
    assert_eq!(objects.exists(), len > 1 << 16, "{len} bytes stand where they are to");
    let log = LogReader::open(session.dir()).unwrap();
    let report = Replay::new(&log, &types()).all().run(|again| host(&again, produced)).unwrap();
    let path = |found: &foldlog::Divergence| {
        format!("{} {} {}", found.sequence, found.slice.as_deref().unwrap_or("-"), found.path)
    };
    report.divergences.iter().map(path).collect()
}

/// Fields that an event excludes from comparison were compared once the event was over 64 KiB.
#[test]
fn what_is_not_compared_of_a_small_event_is_not_compared_of_a_large_one() {
    let recorded = [("a", 1), ("b", 2), ("c", 3)];
    for len in [10, 100_000] {
        assert_eq!(replayed(&recorded, &[("a", 5), ("b", 2), ("c", 6)], len), [] as [&str; 0], "{len}");
        assert_eq!(replayed(&recorded, &[("a", 5), ("B", 7), ("c", 3)], len), ["3 - $.event.text"], "{len}");
        // The system chooses an address.
        let (one, other) = ([("at 0x7ffd5e8a1b2c", 1)], [("at 0x7ffd5e8a9b2c", 1)]);
        assert_eq!(replayed(&one, &other, len), [] as [&str; 0], "{len}");
    }
    // A missing item is distinguished from a changed one.
    for len in [10, 100_000] {
        assert_eq!(replayed(&recorded, &[("b", 9), ("c", 3)], len), ["2 - $"], "{len}");
    }
}
