//! Writes the only segment of a log, as valid frames with arbitrary records.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufWriter, Write as _};
use std::path::{Path, PathBuf};

use foldlog_codec::RecordKind;
use foldlog_codec::body::{
    Action, Binding, BuiltIn, Declare, Dispatch, EventDeclaration, Payload, Policy, SessionOpening,
    SliceDeclaration,
};
use foldlog_codec::frame::{self, Context, Header};
use foldlog_codec::segment::SegmentHeader;
use uuid::Uuid;

const SALT: u64 = 11;

/// Builds the bytes of a segment, record by record.
#[derive(Debug, Default)]
pub struct Forge {
    next: u64,
    predecessor_crc: u32,
}

impl Forge {
    /// The session id in every forged segment.
    pub const SESSION: Uuid = Uuid::from_u128(9);

    /// Returns the bytes before the segment's first record.
    pub fn head() -> Vec<u8> {
        let header = SegmentHeader {
            ordinal: 0,
            session: Forge::SESSION,
            first_sequence: 0.into(),
            watermark: 0.into(),
            salt: SALT,
            previous: None,
        };
        header.encode().to_vec()
    }

    /// Returns the sequence number of the next record.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// Returns the bytes of the next record's frame.
    ///
    /// # Panics
    ///
    /// If the body is too long for a frame.
    pub fn frame(&mut self, kind: RecordKind, body: &[u8]) -> Vec<u8> {
        let header = Header {
            crc: 0,
            predecessor_crc: self.predecessor_crc,
            body_len: body.len() as u32,
            sequence: self.next.into(),
            watermark: 0.into(),
            kind,
            time_us: 1_767_323_045_000_006,
        };
        let mut bytes = Vec::new();
        let context = Context::new(SALT, 0.into());
        self.predecessor_crc = frame::encode(context, &header, body, &mut bytes).expect("a frame holds it");
        self.next += 1;
        bytes
    }
}

/// Writes a log of a store, frame by frame. It declares an event `said`, which is appended to the
/// STATE slice `known`.
#[derive(Debug)]
pub struct ForgedLog {
    dir: PathBuf,
    forge: Forge,
    file: BufWriter<File>,
    bytes: u64,
}

impl ForgedLog {
    /// Starts the log of the session [`Forge::SESSION`] of the store in this directory.
    pub fn new(store: &Path) -> ForgedLog {
        let dir = store.join("sessions").join(Forge::SESSION.to_string());
        fs::create_dir_all(&dir).expect("the session's directory is made");
        let file = File::create(dir.join("0000000000.seg")).expect("the segment is made");
        let mut log = ForgedLog { dir, forge: Forge::default(), file: BufWriter::new(file), bytes: 0 };
        log.file.write_all(&Forge::head()).expect("the segment is written");
        let opened = SessionOpening { session: Forge::SESSION, seed: 1, tags: BTreeMap::new(), parent: None };
        log.record(RecordKind::Opened, &opened.encode());
        let bindings = vec![Binding { slice: 1, built_in: BuiltIn::Append }];
        let event =
            EventDeclaration { id: 0, name: "said".to_owned(), version: 1, bindings, implicit: false };
        let slice = |id, name: &str, policy| SliceDeclaration {
            id,
            name: name.to_owned(),
            policy,
            item: "said".to_owned(),
        };
        let slices = vec![slice(0, "tool_invoked", Policy::Log), slice(1, "known", Policy::State)];
        log.record(RecordKind::Declare, &Declare { events: vec![event], slices }.encode());
        log
    }

    /// Returns the sequence number of the next record.
    pub fn next(&self) -> u64 {
        self.forge.next()
    }

    /// Returns the length of all frames so far.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Writes a record, and returns its sequence number.
    pub fn record(&mut self, kind: RecordKind, body: &[u8]) -> u64 {
        let sequence = self.forge.next();
        let frame = self.forge.frame(kind, body);
        self.file.write_all(&frame).expect("the segment is written");
        self.bytes += frame.len() as u64;
        sequence
    }

    /// Writes an event `said`, and returns its sequence number.
    pub fn event(&mut self, data: &[u8]) -> u64 {
        let action = Action::Event { event: 0, data: Payload::new(data) };
        self.record(RecordKind::Dispatch, &Dispatch { action, effects: None }.encode())
    }

    pub fn flush(&mut self) {
        self.file.flush().expect("the segment is written");
    }
}
