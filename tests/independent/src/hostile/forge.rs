//! Writes logs frame by frame, with valid checksums and any content.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;

use foldlog_codec::RecordKind;
use foldlog_codec::body::ObjectId;
use foldlog_codec::frame::{self, Context, Header};
use foldlog_codec::msgpack::MsgpackWriter;
use foldlog_codec::segment::{Previous, SegmentHeader};
use uuid::Uuid;

use super::Made;
use crate::chance::Chance;
use crate::report::Result;

/// 2024-01-01, in microseconds.
const TIME_US: i64 = 1_704_067_200_000_000;

/// A session of one segment, under construction.
#[derive(Clone, Debug)]
pub(super) struct Forge {
    pub(super) id: Uuid,
    context: Context,
    /// The segment's bytes so far.
    pub(super) bytes: Vec<u8>,
    crc: u32,
    /// The next record's sequence number.
    pub(super) next: u64,
    pub(super) time_us: i64,
    watermark: u64,
    objects: Vec<(String, Vec<u8>, u64)>,
}

impl Forge {
    /// Starts with a segment's header alone.
    pub(super) fn empty(seed: u64, first_sequence: u64) -> Forge {
        let mut chance = Chance::new(seed);
        let mut id = [0; 16];
        id.copy_from_slice(&chance.bytes(16));
        let id = uuid::Builder::from_random_bytes(id).into_uuid();
        Forge::segment(id, 0, first_sequence, chance.number(), None)
    }

    /// Starts one segment of a session.
    pub(super) fn segment(
        session: Uuid,
        ordinal: u32,
        first_sequence: u64,
        salt: u64,
        previous: Option<Previous>,
    ) -> Forge {
        let header = SegmentHeader {
            ordinal,
            session,
            first_sequence: first_sequence.into(),
            watermark: first_sequence.into(),
            salt,
            previous,
        };
        Forge {
            id: session,
            context: Context::new(salt, first_sequence.into()),
            bytes: header.encode().to_vec(),
            crc: previous.map_or(0, |previous| previous.crc),
            next: first_sequence,
            time_us: TIME_US,
            watermark: first_sequence,
            objects: Vec::new(),
        }
    }

    /// Starts with the first record, and one event `e` that is added to the slice `s`.
    pub(super) fn new(seed: u64) -> Result<Forge> {
        let mut forge = Forge::empty(seed, 0);
        let id = forge.id;
        forge.record(RecordKind::Opened, &opened(id, |_| {}, 0))?;
        forge.declare("e", "s")?;
        Ok(forge)
    }

    /// Declares the event 0 and the slice 0 under these names, and the slice 1 for the ends of
    /// tools.
    pub(super) fn declare(&mut self, event: &str, slice: &str) -> Result<()> {
        let mut body = MsgpackWriter::new();
        body.map(2).str("events").array(1);
        body.map(3).str("id").unsigned(0).str("name").str(event).str("to").array(2).unsigned(0).unsigned(0);
        body.str("slices").array(2);
        body.map(2).str("id").unsigned(0).str("name").str(slice);
        body.map(3).str("id").unsigned(1).str("name").str("tool_invoked").str("policy").str("log");
        self.record(RecordKind::Declare, &body.finish())
    }

    /// Returns the predecessor of the next segment.
    pub(super) fn end(&self, ordinal: u32) -> Previous {
        Previous { ordinal, end: self.bytes.len() as u64, crc: self.crc }
    }

    pub(super) fn record(&mut self, kind: RecordKind, body: &[u8]) -> Result<()> {
        self.frame(kind, body)?;
        self.next += 1;
        Ok(())
    }

    /// Writes a frame that is no record.
    pub(super) fn frame(&mut self, kind: RecordKind, body: &[u8]) -> Result<()> {
        let header = Header {
            crc: 0,
            predecessor_crc: self.crc,
            body_len: u32::try_from(body.len())?,
            sequence: self.next.into(),
            watermark: self.watermark.into(),
            kind,
            time_us: self.time_us,
        };
        self.crc = frame::encode(self.context, &header, body, &mut self.bytes)?;
        Ok(())
    }

    /// States that all records so far are durable.
    pub(super) fn synced(&mut self) -> Result<()> {
        self.watermark = self.next;
        self.frame(RecordKind::Synced, &[])
    }

    /// Writes the event with this payload.
    pub(super) fn event(&mut self, payload: &[u8]) -> Result<()> {
        let mut body = MsgpackWriter::new();
        body.map(2).str("e").unsigned(0).str("d").raw(payload);
        self.record(RecordKind::Dispatch, &body.finish())
    }

    /// Writes the event with a text.
    pub(super) fn text(&mut self, text: &str) -> Result<()> {
        let mut payload = MsgpackWriter::new();
        payload.map(1).str("text").str(text);
        self.event(&payload.finish())
    }

    /// Makes an object that begins with these bytes and continues with zeros, which take no room on
    /// the disk. Returns its reference.
    pub(super) fn object(&mut self, head: &[u8], len: u64) -> Vec<u8> {
        let mut hasher = blake3::Hasher::new();
        hasher.update(head);
        let zeros = vec![0; 1 << 16];
        let mut left = usize::try_from(len).unwrap_or_default() - head.len();
        while left > 0 {
            let piece = left.min(zeros.len());
            hasher.update(zeros.get(..piece).unwrap_or_default());
            left -= piece;
        }
        let object = ObjectId { hash: *hasher.finalize().as_bytes(), len };
        self.objects.push((object.file_name(), head.to_vec(), len));
        object.reference()
    }

    /// Writes a tool's start record, within another operation or not.
    pub(super) fn begin(&mut self, tool: &str, within: Option<u64>, reads_only: bool) -> Result<u64> {
        let mut body = MsgpackWriter::new();
        body.map(2 + usize::from(within.is_some()) + usize::from(reads_only));
        body.str("t").str(tool).str("args").str("{}");
        if let Some(within) = within {
            body.str("in").unsigned(within);
        }
        if reads_only {
            body.str("ro").bool(true);
        }
        self.record(RecordKind::ToolBegin, &body.finish())?;
        Ok(self.next - 1)
    }

    pub(super) fn tool_end(&mut self, begin: u64, tool: &str, outcome: &str, shown: &str) -> Result<()> {
        let mut body = MsgpackWriter::new();
        let back = outcome != "committed";
        body.map(6 + usize::from(back)).str("op").unsigned(begin).str("t").str(tool).str("out").str(outcome);
        if back {
            body.str("back").bool(true);
        }
        body.str("us").unsigned(5).str("shown").str(shown).str("s").unsigned(1);
        self.record(RecordKind::ToolEnd, &body.finish())
    }

    /// Writes the session into a store of its own.
    pub(super) fn write(&self, base: &Path) -> Result<Made> {
        self.write_as(base, 0)
    }

    /// Does the same as the segment of an ordinal, next to other segments.
    pub(super) fn write_as(&self, base: &Path, ordinal: u32) -> Result<Made> {
        let store = base.join("store");
        let session = store.join("sessions").join(self.id.to_string());
        fs::create_dir_all(&session)?;
        fs::write(session.join(format!("{ordinal:010}.seg")), &self.bytes)?;
        for (name, head, len) in &self.objects {
            fs::create_dir_all(session.join("objects"))?;
            let file = File::create(session.join("objects").join(name))?;
            file.write_all_at(head, 0)?;
            file.set_len(*len)?;
        }
        Ok(Made { store, session, last: self.next.saturating_sub(1) })
    }
}

/// Returns the body of a first record, with more fields.
pub(super) fn opened(session: Uuid, more: impl FnOnce(&mut MsgpackWriter), fields: usize) -> Vec<u8> {
    let mut body = MsgpackWriter::new();
    body.map(2 + fields).str("session").bin(session.as_bytes()).str("seed").unsigned(7);
    more(&mut body);
    body.finish()
}
