//! A session's files in one input.
//!
//! ```text
//! input  = flags u8, entry ...
//! entry  = what u8, number u16, len u16, len bytes              (as FITTED or not says)
//! entry  = kind u8, time u8, len u16, len bytes                 (BUILT)
//! ```
//!
//! Numbers are little-endian, and an entry that claims more bytes than there are has the remaining
//! ones. Without [`BUILT`] an entry is a file: `what` 0 is the segment and 1 the image of that
//! number, 2 an object whose name is its first 32 bytes, and any other value a file of no such
//! kind. With [`BUILT`] an entry is a record, and all records form a valid log, so that the fold
//! sees the bodies however they were changed; kind 0 starts a segment.

use std::collections::BTreeMap;
use std::path::PathBuf;

use foldlog::RecordKind;
use foldlog_codec::crc;
use foldlog_codec::frame::{self, Context, HEADER_LEN as FRAME_HEADER_LEN, Header};
use foldlog_codec::segment::{HEADER_LEN, Previous, SegmentHeader};
use uuid::Uuid;

/// Flag: the entries are records.
pub const BUILT: u8 = 1;
/// Flag: checksums of segments are corrected.
pub const FITTED: u8 = 2;
/// Flag: power was cut since the log was written.
const OTHER_BOOT: u8 = 4;
/// Flag: digests of images are corrected.
const IMAGES_FITTED: u8 = 8;
/// Flag: files are as long as their bytes; otherwise zeros fill up their last page.
pub const UNPADDED: u8 = 16;
/// Flag: checksums of compressed segments are corrected.
pub const UNPACKED: u8 = 32;

const SESSION: Uuid = Uuid::from_u128(0xf0_1d);

#[derive(Debug, Default)]
pub struct Set {
    /// The session that the directory is named for.
    pub session: Uuid,
    /// Whether power was cut since.
    pub other_boot: bool,
    /// Whether checksums were corrected, so that bodies may have any content.
    pub fitted: bool,
    /// Whether there are images: with one, opening reads less of the log than an auditor does.
    pub images: bool,
    /// Whether there are images with arbitrary content.
    pub images_lie: bool,
    /// The files, by their paths within the directory.
    pub files: BTreeMap<PathBuf, Vec<u8>>,
}

impl Set {
    /// Reads the set of an input.
    pub fn of(input: &[u8]) -> Set {
        let (flags, entries) = input.split_first().map_or((0, input), |(flags, rest)| (*flags, rest));
        let mut set = if flags & BUILT != 0 { built(entries) } else { given(entries, flags) };
        set.other_boot = flags & OTHER_BOOT != 0;
        set.fitted = flags & (BUILT | FITTED) != 0;
        set
    }

    /// Returns the input for these files, whose paths are those within the session's directory.
    pub fn input(flags: u8, files: &BTreeMap<PathBuf, Vec<u8>>) -> Vec<u8> {
        let mut input = vec![flags];
        for (path, bytes) in files {
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            let stem = name.split('.').next().unwrap_or_default();
            let number = stem.parse::<u16>().unwrap_or_default();
            let used = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
            let (what, content) = match path.extension().and_then(|extension| extension.to_str()) {
                Some("seg") => (0, bytes[..used].to_vec()),
                Some("image") => (1, bytes.clone()),
                None if path.starts_with("objects") => (2, [unhex(name), bytes.clone()].concat()),
                _ => (3, bytes.clone()),
            };
            input.push(what);
            input.extend(number.to_le_bytes());
            input.extend((content.len() as u16).to_le_bytes());
            input.extend(content);
        }
        input
    }

    /// Returns the input for a log of these records, each with its kind.
    pub fn input_of_records<'a>(records: impl IntoIterator<Item = (RecordKind, &'a [u8])>) -> Vec<u8> {
        let mut input = vec![BUILT];
        for (kind, body) in records {
            input.extend([kind.byte(), 10]);
            input.extend((body.len() as u16).to_le_bytes());
            input.extend(body);
        }
        input
    }
}

fn unhex(name: &str) -> Vec<u8> {
    let digits = name.as_bytes().chunks_exact(2);
    digits.filter_map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()).collect()
}

/// The entries: two leading fields, and the bytes.
struct Entries<'a>(&'a [u8]);

impl<'a> Entries<'a> {
    fn take(&mut self, len: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        taken
    }

    fn number(&mut self, len: usize) -> usize {
        self.take(len).iter().rev().fold(0, |number, byte| number << 8 | usize::from(*byte))
    }

    fn bytes(&mut self) -> &'a [u8] {
        let len = self.number(2);
        self.take(len)
    }
}

fn given(entries: &[u8], flags: u8) -> Set {
    let (mut segments, mut set) = (BTreeMap::new(), Set { session: SESSION, ..Set::default() });
    let mut entries = Entries(entries);
    while !entries.0.is_empty() {
        let (what, number) = (entries.number(1), entries.number(2));
        let mut bytes = entries.bytes().to_vec();
        match what {
            0 => {
                if flags & UNPADDED == 0 {
                    bytes.resize(bytes.len().next_multiple_of(4096), 0);
                }
                if flags & UNPACKED != 0 {
                    fit_compressed(&mut bytes);
                }
                segments.insert(number, bytes);
            }
            1 => {
                set.images = true;
                if flags & IMAGES_FITTED != 0 && bytes.len() > 40 {
                    let digest = blake3::hash(&bytes[40..]);
                    bytes[8..40].copy_from_slice(digest.as_bytes());
                    set.images_lie = true;
                }
                set.files.insert(format!("snapshots/{number:020}.image").into(), bytes);
            }
            2 => {
                let (name, content) = bytes.split_at(bytes.len().min(32));
                let name: String = name.iter().map(|byte| format!("{byte:02x}")).collect();
                set.files.insert(format!("objects/{name}").into(), content.to_vec());
            }
            _ => drop(set.files.insert(format!("beside-{number}").into(), bytes)),
        }
    }
    let (names, mut files): (Vec<usize>, Vec<Vec<u8>>) = segments.into_iter().unzip();
    if flags & FITTED != 0 {
        fit(&mut files);
    }
    let writer = files.iter().rev().find_map(|bytes| SegmentHeader::decode(bytes).ok());
    set.session = writer.map_or(SESSION, |header| header.session);
    for (number, bytes) in names.into_iter().zip(files) {
        set.files.insert(format!("{number:010}.seg").into(), bytes);
    }
    set
}

/// Corrects the checksums of segments, along the chain, like an attacker who writes files to harm
/// their reader.
pub(super) fn fit(segments: &mut [Vec<u8>]) {
    let mut ends = BTreeMap::new();
    let mut chain = 0;
    for bytes in segments {
        let Some(head) = bytes.first_chunk_mut::<HEADER_LEN>() else { return };
        head.copy_within(48..56, 72);
        let field = |at: usize| u64::from_le_bytes(head[at..at + 8].try_into().expect("eight bytes"));
        let previous = u32::from_le_bytes(head[56..60].try_into().expect("four bytes"));
        if let Some(crc) = ends.get(&(previous, field(60))) {
            chain = *crc;
            head[68..72].copy_from_slice(&u32::to_le_bytes(chain));
        }
        let Some(header) = fitting(head) else { continue };
        let context = Context::new(header.salt, header.first_sequence);
        let mut at = HEADER_LEN;
        while let Some(rest) = bytes.get_mut(at..) {
            let len = frame::claimed_len(rest);
            let Ok(claimed) = frame::peek(context, rest) else { break };
            let Some(whole) = rest.get_mut(..len) else { break };
            let claimed = Header { predecessor_crc: chain, ..claimed };
            let Ok(crc) = frame::fill_in(context, &claimed, whole) else { break };
            at += len;
            // A seal is outside the chain.
            if claimed.kind != RecordKind::Seal {
                chain = crc;
            }
            ends.insert((header.ordinal, at as u64), crc);
        }
    }
}

/// Corrects the checksums of a compressed segment, so that decoders see arbitrary bytes.
fn fit_compressed(bytes: &mut [u8]) {
    if bytes.len() < 32 || !bytes.starts_with(b"FOLDZIP\n") {
        return;
    }
    let number = |bytes: &[u8]| bytes.iter().rev().fold(0_u64, |number, byte| number << 8 | u64::from(*byte));
    let plain_len = number(&bytes[16..24]);
    let head = 32..32 + plain_len.min(256) as usize;
    let blocks = plain_len.div_ceil(64 << 10).min(bytes.len() as u64) as usize;
    let table = head.end..head.end + 8 * blocks;
    let mut at = table.end;
    for entry in table.clone().step_by(8) {
        let Some(len) = bytes.get(entry..entry + 4).map(number) else { break };
        let end = at.saturating_add(len as usize);
        let Some(crc) = bytes.get(at..end).map(|block| crc::with_bytes(0, block)) else { break };
        bytes[entry + 4..entry + 8].copy_from_slice(&crc.to_le_bytes());
        at = end;
    }
    for (place, covered) in [(12, head), (24, table), (28, 0..28)] {
        let Some(crc) = bytes.get(covered).map(|covered| crc::with_bytes(0, covered)) else { continue };
        bytes[place..place + 4].copy_from_slice(&crc.to_le_bytes());
    }
}

/// Returns the header with a correct checksum, or `None` for impossible fields.
fn fitting(head: &mut [u8; HEADER_LEN]) -> Option<SegmentHeader> {
    match SegmentHeader::decode(head) {
        Err(foldlog_codec::Error::Checksum { expected, .. }) => {
            head[HEADER_LEN - 4..].copy_from_slice(&expected.to_le_bytes());
            SegmentHeader::decode(head).ok()
        }
        decoded => decoded.ok(),
    }
}

/// Builds a valid log of the records in the entries.
fn built(entries: &[u8]) -> Set {
    let mut set = Set { session: SESSION, ..Set::default() };
    let header = |ordinal, first_sequence, previous| SegmentHeader {
        ordinal,
        session: SESSION,
        first_sequence,
        watermark: first_sequence,
        salt: 0x5a17 + u64::from(ordinal),
        previous,
    };
    let mut at = header(0, 0.into(), None);
    let mut bytes = at.encode().to_vec();
    let (mut sequence, mut time_us, mut chain) = (0_u64, 1_700_000_000_000_000_i64, 0);
    let keep = |set: &mut Set, ordinal: u32, mut bytes: Vec<u8>| {
        bytes.resize(bytes.len().next_multiple_of(4096), 0);
        set.files.insert(format!("{ordinal:010}.seg").into(), bytes);
    };
    let mut entries = Entries(entries);
    while !entries.0.is_empty() {
        let kind = entries.number(1) as u8;
        time_us += entries.number(1) as i64;
        let body = entries.bytes();
        let Some(kind) = RecordKind::from_byte(kind) else {
            let previous = Previous { ordinal: at.ordinal, end: bytes.len() as u64, crc: chain };
            keep(&mut set, at.ordinal, std::mem::take(&mut bytes));
            at = header(at.ordinal + 1, sequence.into(), Some(previous));
            bytes.extend(at.encode());
            continue;
        };
        let context = Context::new(at.salt, at.first_sequence);
        let said = Header {
            crc: 0,
            predecessor_crc: chain,
            body_len: body.len() as u32,
            sequence: sequence.into(),
            watermark: sequence.into(),
            kind,
            time_us,
        };
        debug_assert!(body.len() + FRAME_HEADER_LEN < 1 << 17);
        chain = frame::encode(context, &said, body, &mut bytes).expect("it is within all limits");
        sequence += u64::from(!kind.is_envelope());
    }
    keep(&mut set, at.ordinal, bytes);
    set
}
