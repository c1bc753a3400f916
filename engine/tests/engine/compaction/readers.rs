//! An open reader whose log is compacted.

use std::collections::BTreeMap;
use std::sync::Arc;

use foldlog::inspect::{LogReader, ReadOptions};
use foldlog::storage::Storage as _;
use foldlog::{CollectOptions, Durability, Error, SequenceNumber, State};
use foldlog_test_support::crash::Machine;
use foldlog_test_support::host::{DraftEdited, types};
use foldlog_test_support::workload::write_lines;

use super::{compact, written};

#[derive(Debug, PartialEq)]
struct Read {
    /// Slices at some positions, each found on its own and along the live path.
    states: BTreeMap<SequenceNumber, (State, State)>,
    /// Sequence number, kind and body of each record.
    records: Vec<(SequenceNumber, String, Vec<u8>)>,
    /// Offset and length of each frame.
    frames: Vec<(u64, u64)>,
    segments: usize,
    snapshots: usize,
    calls: usize,
}

fn read(reader: &LogReader) -> foldlog::Result<Read> {
    let (mut states, mut records, mut frames) = (BTreeMap::new(), Vec::new(), Vec::new());
    let mut along = reader.walk_paths();
    for position in (3..reader.records_len()).step_by(7) {
        let position = SequenceNumber::from(position);
        states.insert(position, (reader.state_at(position)?, along.state(position)?));
    }
    reader.records(0, reader.last_position(), |record| {
        records.push((record.sequence, format!("{:?}", record.kind), record.body.to_vec()));
        Ok(())
    })?;
    reader.frames(|frame| {
        frames.push((frame.offset, frame.bytes));
        Ok(())
    })?;
    let (segments, snapshots) = (reader.segments()?.len(), reader.snapshots()?.len());
    Ok(Read { states, records, frames, segments, snapshots, calls: reader.ledger()?.len() })
}

/// `foldlog state`, `show`, `stats` and `ledger` opened a log and read its files again by name.
/// During compactions they failed half way, since the files that they had found were gone.
#[test]
fn a_reader_reads_on_what_it_found_whatever_a_compaction_replaces() {
    let (machine, id) = written();
    let sound = || {
        let disk = Arc::new(machine.disk.clone());
        LogReader::open_sound(disk, machine.dir(id), ReadOptions::default()).unwrap()
    };
    let (reader, late, sound) = (machine.audit(id).unwrap(), machine.audit(id).unwrap(), sound());
    let before = read(&reader).unwrap();
    assert!(before.segments > 3 && before.states.len() > 10 && before.snapshots > 0);

    assert!(compact(&machine, id).unwrap().dropped > 60);
    assert!(read(&reader).unwrap() == before);
    // So does a reader that has read nothing so far.
    assert!(read(&late).unwrap() == before);
    assert!(read(&sound).unwrap() == before);
    // A reader that opens the log now finds it compacted.
    let now = machine.audit(id).unwrap();
    assert!(now.compacted_ranges().len() > reader.compacted_ranges().len());
    let gone = now.compacted_ranges()[0].from;
    assert!(now.state_at(gone + 1).is_err());
}

/// A dropped body may be an object, which a collection then removes: it is not lost.
#[test]
fn a_reader_is_told_to_read_anew_where_what_it_found_is_collected() {
    let machine = Machine::default();
    let session = machine.process(Durability::Boundary).create(&types()).unwrap();
    write_lines(&session, 40);
    session.dispatch(DraftEdited { place: 0, line: "a large line ".repeat(100) }).unwrap();
    let then = session.log().position().unwrap();
    write_lines(&session, 40);
    let id = session.id();
    session.close().unwrap();
    let reader = machine.audit(id).unwrap();
    reader.state_at(then).unwrap();
    compact(&machine, id).unwrap();
    assert!(reader.state_at(then).is_ok());
    let collected = machine.process(Durability::Boundary).collect(&CollectOptions::default()).unwrap();
    assert!(collected.all.objects > 0, "{collected:?}");
    let error = reader.state_at(then).unwrap_err();
    assert!(matches!(error, Error::CompactedMeanwhile { .. }), "{error}");
    // An object that is missing although nothing was replaced is lost.
    let reader = machine.audit(id).unwrap();
    let object = machine.disk.list(&machine.dir(id).join("objects")).unwrap().remove(0);
    machine.disk.remove_file(&machine.dir(id).join("objects").join(object.name)).unwrap();
    let last = reader.last_position();
    let lost = (0..=last.get()).find_map(|at| reader.state_at(at).err().filter(Error::is_damage));
    assert!(matches!(lost, Some(Error::Object { .. })), "{lost:?}");
}
