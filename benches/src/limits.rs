//! The limits: the least work of the machine for each subject.

use std::fs::File;
use std::hint::black_box;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Arc, LazyLock};
use std::time::{SystemTime, UNIX_EPOCH};

use foldlog::storage::{FileStorage, Storage, StorageFile};
use foldlog_codec::frame::{self, Context, Header};
use foldlog_codec::{RecordKind, msgpack};

use crate::measure::Result;
use crate::subject::BenchStep;

static CONTEXT: LazyLock<Context> = LazyLock::new(|| Context::new(7, 0.into()));

/// Names the limit measured by two threads at once, which shows whether a subject with two threads
/// had two processors. If these are halves of one, this row takes up to twice the limit.
pub const LIMIT_TWICE: &str = "the limit, by each of two threads at once";

pub fn now_us() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros() as i64)
}

/// Writes a frame with its CRC.
pub fn write_frame(sequence: u64, time_us: i64, body: &[u8], out: &mut Vec<u8>) -> Result<()> {
    let (kind, watermark) = (RecordKind::Dispatch, sequence);
    let header = Header {
        crc: 0,
        predecessor_crc: 1,
        body_len: 0,
        sequence: sequence.into(),
        watermark: watermark.into(),
        kind,
        time_us,
    };
    frame::encode(*CONTEXT, &header, body, out)?;
    Ok(())
}

/// Contains a mapped file with all its pages loaded, which is rewritten from its beginning once it
/// is full. It uses the engine's own mapping, since only the engine maps files here. A call through
/// a trait and a lock without contention make its `write_at` slower than a bare copy, by 16 ns of
/// 105 when that was measured.
pub struct Mapped {
    file: Arc<dyn StorageFile>,
    bytes: u64,
    offset: u64,
    frame: Vec<u8>,
    body: Vec<u8>,
}

impl Mapped {
    pub fn new(path: &Path, bytes: u64) -> io::Result<Mapped> {
        let file = FileStorage::new().create_segment(path, bytes)?;
        Ok(Mapped { file, bytes, offset: 0, frame: Vec::new(), body: Vec::new() })
    }

    /// Loads all pages, including those that the system has written to the disk meanwhile.
    pub fn fault_in(&self) -> io::Result<()> {
        self.file.prepare(0, self.bytes)
    }

    /// Writes a frame with its CRC into the file, for a time that was read before.
    pub fn append(&mut self, sequence: u64, time_us: i64, body: &[u8]) -> Result<()> {
        self.frame.clear();
        write_frame(sequence, time_us, body, &mut self.frame)?;
        if self.offset + self.frame.len() as u64 > self.bytes {
            self.offset = 0;
        }
        self.file.write_at(&self.frame, self.offset)?;
        self.offset += self.frame.len() as u64;
        Ok(())
    }

    /// Encodes an event, checks that it can be decoded, and appends it as
    /// [`append`](Mapped::append) does.
    pub fn append_event(&mut self, sequence: u64, time_us: i64, step: &BenchStep) -> Result<()> {
        let mut body = std::mem::take(&mut self.body);
        body.clear();
        msgpack::append(step, &mut body)?;
        self.append(sequence, time_us, &body)?;
        self.body = body;
        Ok(())
    }
}

/// Makes a plain file, filled with writes of 4 KiB and synced. Larger writes leave larger units in
/// the page cache, and each sync would write a whole one.
pub fn filled(path: &Path, bytes: u64) -> io::Result<File> {
    let file = File::create_new(path)?;
    (0..bytes.div_ceil(4096)).try_for_each(|page| file.write_all_at(&[1; 4096], page * 4096))?;
    file.sync_all()?;
    Ok(file)
}

/// Makes one positioned write and one sync.
pub fn write_and_sync(file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
    file.write_all_at(bytes, offset)?;
    file.sync_data()
}

/// Checks the CRCs of consecutive frames in memory, and returns their number.
pub fn check_frames(bytes: &[u8], mut visit: impl FnMut(&[u8])) -> u64 {
    let (mut rest, mut frames) = (bytes, 0);
    while let Ok(frame) = frame::decode(*CONTEXT, rest) {
        visit(frame.body);
        frames += 1;
        rest = rest.get(frame.len()..).unwrap_or_default();
    }
    frames
}

/// Decodes an event without the pre-scan, as if its bytes were known to be valid.
pub fn decoded(body: &[u8]) -> Option<BenchStep> {
    msgpack::from_scanned::<BenchStep>(body).ok()
}

pub fn decode(body: &[u8]) {
    let _ = black_box(decoded(body));
}

/// Decodes an event after the pre-scan, which all bytes of a file have to pass.
pub fn check_and_decode(body: &[u8]) {
    let _ = black_box(msgpack::from_slice::<BenchStep>(body));
}
