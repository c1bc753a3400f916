//! Frames and bodies.

use foldlog::SequenceNumber;
use std::sync::Arc;

use foldlog::RecordKind;
use foldlog::inspect::walk_on;
use foldlog::storage::{MemoryStorage, Storage};
use foldlog_codec::body::{
    AdapterState, AnswerBody, Base, Compacted, Declare, Dispatch, Dropped, EventDeclaration, Import, Input,
    KnownPositions, Lane, Observed, Policy, PromptAccepted, Replicated, Request, Resumed, Rollback, Seal,
    SessionOpening, Settle, Shortened, SliceDeclaration, SnapshotBody, ToolBegin, ToolEnd, Turn,
};
use foldlog_codec::frame::{self, Context};
use foldlog_codec::msgpack::Value;
use foldlog_codec::record::RecordNames;
use foldlog_codec::segment::{HEADER_LEN, SegmentHeader};
use foldlog_codec::{Record, msgpack};

use super::files::fit;
use foldlog_test_support::crash::BOOT;

/// Reads the bytes as a segment file, unchanged and with corrected checksums.
///
/// # Panics
///
/// If a property is violated.
pub fn frames(bytes: &[u8]) {
    scanned(bytes);
    let mut fitted = bytes.to_vec();
    fit(std::slice::from_mut(&mut fitted));
    scanned(&fitted);
}

fn scanned(bytes: &[u8]) {
    let header = SegmentHeader::decode(bytes).ok();
    if let Some(header) = header {
        assert_eq!(SegmentHeader::decode(&header.encode()), Ok(header));
    }
    let context = header.map_or(Context::new(7, 100.into()), |it| Context::new(it.salt, it.first_sequence));
    let mut at = HEADER_LEN.min(bytes.len());
    while let Ok(found) = frame::decode(context, &bytes[at..]) {
        let mut again = Vec::new();
        let crc = frame::encode(context, &found.header, found.body, &mut again);
        // A segment that claims to start at the largest number has no number for another record.
        if let Ok(crc) = crc {
            let twice = frame::decode(context, &again).expect("a frame that was just made is sound");
            assert_eq!(twice.header, frame::Header { crc, ..found.header });
            assert_eq!((twice.body, twice.len()), (found.body, found.len()));
        } else {
            assert_eq!(found.header.sequence, u64::MAX);
        }
        at += found.len();
    }

    let storage: Arc<dyn Storage> = {
        let disk = MemoryStorage::with_boot_id(BOOT);
        disk.write_file("/log/0000000000.seg", bytes).expect("the disk takes it");
        Arc::new(disk)
    };
    let (mut end, mut records) = (HEADER_LEN as u64, 0);
    let walked = walk_on(&storage, "/log".as_ref(), &mut |met| {
        assert_eq!(met.offset, end, "frames stand side by side");
        let sound = frame::decode(context, &bytes[met.offset as usize..]).expect("it is a frame");
        assert_eq!((sound.body, sound.header.kind), (met.record.body, met.record.kind));
        end += met.bytes;
        records += u64::from(!met.record.kind.is_envelope());
        Ok(())
    });
    if let Ok(walked) = walked {
        assert_eq!((walked.records, walked.report.records), (records, records));
        assert!(end <= bytes.len() as u64);
    }
}

/// Returns names for two slices and two events; the others are unknown.
fn names() -> RecordNames {
    let mut names = RecordNames::default();
    let slice = |id| SliceDeclaration {
        id,
        name: format!("slice {id}"),
        policy: Policy::State,
        item: "item".to_owned(),
    };
    let event = |id| EventDeclaration {
        id,
        name: format!("event {id}"),
        version: 1,
        bindings: Vec::new(),
        implicit: false,
    };
    names.learn(&Declare { events: vec![event(0), event(1)], slices: vec![slice(0), slice(1)] });
    names
}

/// Reads the first byte as a kind, and the others as its body.
///
/// # Panics
///
/// If a property is violated.
pub fn record(bytes: &[u8]) {
    let Some((kind, body)) = bytes.split_first() else { return };
    let Some(kind) = RecordKind::from_byte(*kind) else { return };
    let record = Record { sequence: SequenceNumber::new(7), kind, time_us: 1_700_000_000_000_000, body };
    let reads = foldlog_codec::body::check(record.kind, record.body).is_ok();
    macro_rules! comes_back {
        ($body:ident) => {
            if let Ok(found) = $body::decode(body) {
                assert!(reads);
                let again = found.encode();
                msgpack::check(&again).expect("a body is one value");
                let twice = $body::decode(&again).expect("what was just written reads");
                assert_eq!(twice, found);
                assert_eq!(twice.encode(), again);
                let rewritten = Record { body: &again, ..record };
                assert_eq!(rewritten.objects(), record.objects());
            }
        };
    }
    if reads {
        let lane = Lane::decode(kind, body).expect("a body that decodes has no malformed lane");
        let mut moved = Rollback { to: 1.into(), preserve_logs: true }.encode();
        lane.add_to(&mut moved, 0);
        assert_eq!(Lane::decode(RecordKind::Rollback, &moved), Ok(lane));
    }
    match kind {
        RecordKind::Opened => comes_back!(SessionOpening),
        RecordKind::Declare | RecordKind::Declared => comes_back!(Declare),
        RecordKind::Dispatch => comes_back!(Dispatch),
        RecordKind::Snapshot => comes_back!(SnapshotBody),
        RecordKind::Rollback => comes_back!(Rollback),
        RecordKind::Import => comes_back!(Import),
        RecordKind::ToolBegin => comes_back!(ToolBegin),
        RecordKind::ToolEnd => comes_back!(ToolEnd),
        RecordKind::Observed => comes_back!(Observed),
        RecordKind::Replicated => comes_back!(Replicated),
        RecordKind::Settle => comes_back!(Settle),
        RecordKind::Input => comes_back!(Input),
        RecordKind::Request => comes_back!(Request),
        RecordKind::Answer => comes_back!(AnswerBody),
        RecordKind::Turn => comes_back!(Turn),
        RecordKind::Shortened => comes_back!(Shortened),
        RecordKind::PromptAccepted => comes_back!(PromptAccepted),
        RecordKind::AdapterState => comes_back!(AdapterState),
        RecordKind::Resumed => comes_back!(Resumed),
        RecordKind::Seal => comes_back!(Seal),
        RecordKind::Dropped => comes_back!(Dropped),
        RecordKind::Compacted => comes_back!(Compacted),
        RecordKind::Base => comes_back!(Base),
        RecordKind::Synced | RecordKind::Closed | RecordKind::Unknown(_) => {
            if let Ok(found) = Value::decode(body) {
                assert_eq!(Value::decode(&found.encode()).map(|twice| twice.encode()), Ok(found.encode()));
            }
        }
    }
    for names in [RecordNames::default(), names()] {
        if let Ok(shown) = record.to_json(&names) {
            let text = serde_json::to_string(&shown).expect("a record has a JSON form");
            msgpack::from_json(&text).expect("that is JSON");
        }
    }
}

/// Reads the bytes as the positions at which a compacted session's slices are known.
///
/// # Panics
///
/// If a property is violated.
pub fn known_positions(bytes: &[u8]) {
    let Ok(known) = KnownPositions::decode(bytes) else { return };
    assert!(known.ends.is_sorted_by(|before, after| before < after));
    assert!(known.bases.is_sorted_by_key(|base| base.position));
    assert_eq!(KnownPositions::decode(&known.encode()), Ok(known));
}
