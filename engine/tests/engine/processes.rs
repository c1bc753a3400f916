//! Several processes with one session: they write one after the other, however they end, and
//! concurrent readers read what was written.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use foldlog::inspect::{Follower, LogReader, LogUpdate, walk};
use foldlog::{Durability, Error, RecordKind, SequenceNumber};
use foldlog_codec::body::Resumed;
use foldlog_test_support::child::{self, Started};
use foldlog_test_support::competing::{Mark, store_at, take_turns};
use foldlog_test_support::crash::Chance;
use foldlog_test_support::host::{Noted, Notes, Plan, StepAdded, types};

/// The child: opens the session whenever it is free, writes a few notes, and closes or drops it.
#[test]
#[ignore = "a part of another test, which runs it in a process of its own"]
fn part_of_a_child_that_competes() {
    let Some(argument) = child::argument() else { return };
    take_turns(&argument);
}

/// Reads like any reader until it is stopped: records never disappear, and nothing is ever damaged.
fn read_on(dir: &Path, writing: &AtomicBool) -> u64 {
    let mut follower = Follower::open(dir, 0).unwrap();
    let (mut followed, mut looks) = (Vec::new(), 0);
    let mut before: Vec<(SequenceNumber, RecordKind, Vec<u8>)> = Vec::new();
    loop {
        let last_look = !writing.load(Ordering::Acquire);
        let reader = LogReader::open(dir).unwrap_or_else(|error| panic!("look {looks}: {error}"));
        let mut records = Vec::new();
        let take = |record: &foldlog::Record<'_>| {
            records.push((record.sequence, record.kind, record.body.to_vec()));
            Ok(())
        };
        reader.records(0, u64::MAX, take).unwrap_or_else(|error| panic!("look {looks}: {error}"));
        assert!(records.len() >= before.len() && records[..before.len()] == before[..], "look {looks}");
        assert_eq!(records.len() as u64, reader.records_len());
        assert_eq!(reader.state().unwrap().position, Some(SequenceNumber::new(reader.records_len() - 1)));
        before = records;

        let polled = follower.poll(|met| {
            match met {
                LogUpdate::Record { record, .. } => {
                    followed.push((record.sequence, record.kind, record.body.to_vec()));
                }
                other => panic!("look {looks}: {other:?}"),
            }
            Ok(())
        });
        polled.unwrap_or_else(|error| panic!("look {looks}: {error}"));
        let shared = followed.len().min(before.len());
        assert!(followed[..shared] == before[..shared], "look {looks}");

        if looks % 8 == 0 {
            let (store, id) = (dir.parent().unwrap().parent().unwrap(), dir.file_name().unwrap());
            let id = id.to_str().unwrap().parse().unwrap();
            let session = store_at(store, Durability::Process).open_read_only(id, &types()).unwrap();
            let notes = session.log().slice::<Notes>().unwrap();
            assert!(notes.iter().all(|note| note.is_ok()), "look {looks}");
        }
        looks += 1;
        if last_look {
            assert_eq!(followed.len(), before.len());
            return looks;
        }
    }
}

/// Reads the notes that a child reported as kept, ignoring an incomplete line.
fn hear(child: &mut Started, kept: &mut BTreeSet<Mark>, at_most: u64) -> bool {
    for _ in 0..at_most {
        let Some(said) = child.hear("kept") else { return false };
        if said.split(' ').filter(|word| !word.is_empty()).count() == 3 {
            kept.insert(Mark::of(&said));
        }
    }
    true
}

/// Lets processes compete for one session. This many times one of them is killed, possibly while it
/// writes, and replaced.
fn compete(processes: u64, openings: u64, kills: u64) {
    let directory = tempfile::tempdir().unwrap();
    let store = store_at(directory.path(), Durability::Boundary);
    let session = store.create(&types()).unwrap();
    let (id, dir) = (session.id(), session.dir().to_owned());
    session.dispatch(StepAdded { title: "begun".to_owned(), part: 0 }).unwrap();
    session.close().unwrap();
    let start = |process: u64, first: u64| {
        let argument = format!("{} {id} {process} {first} {openings}", directory.path().display());
        child::start("processes::part_of_a_child_that_competes", &argument)
    };
    let mut chance = Chance::new(processes);
    let (mut kept, writing) = (BTreeSet::new(), AtomicBool::new(true));
    std::thread::scope(|scope| {
        let reading = scope.spawn(|| read_on(&dir, &writing));
        let mut children: Vec<Started> = (0..processes).map(|process| start(process, 0)).collect();
        for kill in 0..kills {
            let at = chance.below(processes);
            let child = &mut children[at as usize];
            // It has written, and is anywhere in its next notes when it is killed.
            hear(child, &mut kept, 1 + chance.below(8));
            child.kill();
            hear(child, &mut kept, u64::MAX);
            children[at as usize] = start(at, (kill + 1) * 1000);
        }
        for child in &mut children {
            hear(child, &mut kept, u64::MAX);
            assert!(child.passed(), "what it said stands above");
        }
        writing.store(false, Ordering::Release);
        assert!(reading.join().unwrap() > 1);
    });
    one_after_the_other(&dir, &kept);
    let session = store_at(directory.path(), Durability::Boundary).open_session(id, &types()).unwrap();
    assert_eq!(session.view::<Plan>().unwrap().len(), 1);
    assert!(segments(&dir) > 3);
}

fn segments(dir: &Path) -> usize {
    let names = fs::read_dir(dir).unwrap().map(|entry| -> PathBuf { entry.unwrap().path() });
    names.filter(|path| path.extension().is_some_and(|extension| extension == "seg")).count()
}

/// Checks the log: the notes of an opening are contiguous and in order, those reported as kept are
/// there, and no other process's note is between two frames that record openings.
fn one_after_the_other(dir: &Path, kept: &BTreeSet<Mark>) {
    let mut marks: Vec<Mark> = Vec::new();
    let reader = LogReader::open(dir).unwrap();
    for item in &reader.state().unwrap().slices["notes"].items {
        marks.push(Mark::of(item.value().unwrap().get("text").unwrap().as_str().unwrap()));
    }
    let found: BTreeSet<Mark> = marks.iter().cloned().collect();
    assert_eq!(found.len(), marks.len(), "no note is there twice");
    let lost: Vec<&Mark> = kept.difference(&found).collect();
    assert!(lost.is_empty(), "said to be kept, and lost: {lost:?}");
    let mut ended = BTreeSet::new();
    let mut before: Option<Mark> = None;
    for mark in &marks {
        let same = before.as_ref().filter(|it| (it.process, it.opening) == (mark.process, mark.opening));
        match same {
            Some(before) => assert_eq!(mark.nth, before.nth + 1, "{mark:?}"),
            None => {
                assert_eq!(mark.nth, 0, "{mark:?} is the first of its opening");
                assert!(ended.insert((mark.process, mark.opening)), "another wrote before {mark:?}");
            }
        }
        before = Some(mark.clone());
    }

    // By frames: a frame that records an opening is followed by records that a recovery rewrote,
    // with their earlier times, and then by those of one writer alone.
    let items: Vec<SequenceNumber> =
        reader.state().unwrap().slices["notes"].items.iter().map(|item| item.sequence).collect();
    let marks: BTreeMap<SequenceNumber, Mark> = items.into_iter().zip(marks).collect();
    let (mut opened_us, mut openings) = (0, 0_u64);
    let mut writers: BTreeMap<u64, BTreeSet<(u64, u64)>> = BTreeMap::new();
    walk(dir, &mut |frame| {
        let record = frame.record;
        if record.kind == RecordKind::Resumed {
            opened_us = Resumed::decode(record.body).unwrap().clock_us;
            openings += 1;
        } else if let Some(mark) = marks.get(&record.sequence).filter(|_| record.kind == RecordKind::Dispatch)
            && record.time_us >= opened_us
        {
            writers.entry(openings).or_default().insert((mark.process, mark.opening));
        }
        Ok(())
    })
    .unwrap();
    let mixed: Vec<_> = writers.iter().filter(|(_, who)| who.len() > 1).collect();
    assert!(mixed.is_empty(), "more than one wrote behind one opening: {mixed:?}");
    let who: BTreeSet<_> = writers.values().flatten().collect();
    assert!(who.len() == writers.len() && who.len() > 2, "each writes behind its own opening: {writers:?}");
}

#[test]
fn processes_that_compete_for_a_session_write_it_one_after_the_other() {
    let openings = std::env::var("FOLDLOG_OPENINGS").map_or(6, |openings| openings.parse().unwrap());
    compete(2, openings, 0);
    compete(4, openings, 0);
}

#[test]
fn processes_that_are_killed_while_they_compete_leave_a_log_that_others_go_on_with() {
    let openings: u64 = std::env::var("FOLDLOG_OPENINGS").map_or(6, |openings| openings.parse().unwrap());
    compete(if openings > 6 { 8 } else { 3 }, openings, openings);
}

/// The lock is in the store. Through another store with a link to the same sessions, or after the
/// lock's file was removed, a second writer was admitted, and records acknowledged as durable could
/// not be opened any more.
#[test]
fn a_session_that_two_stores_lead_to_has_one_writer() {
    let directory = tempfile::tempdir().unwrap();
    let (first, other) = (directory.path().join("first"), directory.path().join("other"));
    let types = types();
    let created = store_at(&first, Durability::Every).create(&types).unwrap();
    let id = created.id();
    fs::create_dir(&other).unwrap();
    std::os::unix::fs::symlink(first.join("sessions"), other.join("sessions")).unwrap();
    let is_locked = |path: &Path| {
        let opened = store_at(path, Durability::Every).open_session(id, &types);
        assert!(matches!(opened, Err(Error::Locked { session, .. }) if session == id), "{opened:?}");
    };
    is_locked(&other);
    fs::remove_file(first.join("writers.lock")).unwrap();
    is_locked(&first);
    created.dispatch(Noted { text: "the only writer".to_owned() }).unwrap();
    created.close().unwrap();
    // The same applies to a session that was opened rather than created here; closing it admits the
    // next writer.
    let opened = store_at(&other, Durability::Every).open_session(id, &types).unwrap();
    is_locked(&first);
    opened.close().unwrap();
    let last = store_at(&first, Durability::Every).open_session(id, &types).unwrap();
    assert_eq!(last.log().slice::<Notes>().unwrap().len(), 1);
}
