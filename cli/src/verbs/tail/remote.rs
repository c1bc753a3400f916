//! `foldlog tail URL/sessions/ID`: the last records of a session in a place, and new ones as they
//! arrive. Nothing is copied.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use foldlog::{LivePath, Record, RecordKind, SequenceNumber};
use foldlog_codec::body::Declare;
use foldlog_codec::escape;
use foldlog_codec::record::RecordNames;
use foldlog_remote::{PlaceItem, PlaceReader};
use foldlog_view::documents::timeline::{RecordStanding, Timeline};

use super::{TailBaseline, TailStart, print_record};
use crate::failure::{CommandError, HOLDS, Result};
use crate::output::Output;
use crate::remote::{self, HeldSession};

/// Default limit for the bytes of records that are buffered to be printed last.
const KEPT_BYTES_MAX: u64 = 64 << 20;

/// Lists the records from `start` on. With `every`, continues with new ones until a signal ends the
/// process, and polls the place at this interval.
///
/// # Errors
///
/// - [`Error::Usage`](foldlog_view::Error::Usage) if the place cannot be opened or reached, or if
///   it has no record `start` yet and `every` is `None`.
/// - [`CommandError::Held`] if the place's data does not verify.
pub(super) fn tail(
    asked: &HeldSession,
    start: TailStart,
    every: Option<Duration>,
    output: &mut Output<'_>,
) -> Result<u8> {
    if every.is_some() {
        // Signals are handled before the first line is printed, so that a reader of that line can
        // already end this process.
        (output.pause)(Duration::ZERO).map_err(CommandError::Wait)?;
    }
    let place = remote::place(&asked.url)?;
    let mut reader = place.reader(asked.session).map_err(remote::failure)?;
    let keep = match start {
        TailStart::Last(count) => count,
        TailStart::From(_) => 0,
    };
    let mut ahead = TailLookahead {
        keep,
        bytes_max: output.memory_bytes.unwrap_or(KEPT_BYTES_MAX),
        ..TailLookahead::default()
    };
    reader.read_on(&mut |met| ahead.take(&met)).map_err(remote::failure)?;
    if let Some(failure) = ahead.failure.take() {
        return Err(failure);
    }
    check_start(asked, &ahead, start, every.is_some())?;
    let mut printing = TailPrinter::from_lookahead(&ahead);
    if !output.json() {
        output.line(Timeline::HEADINGS)?;
    }
    match start {
        TailStart::Last(_) => {
            for kept in &ahead.kept {
                printing.print(&kept.record(), output)?;
            }
            printing.claimed = Some(ahead.epoch);
        }
        TailStart::From(from) => {
            printing.from = from;
            // The session is read from its start again, since the records were not buffered.
            reader = place.reader(asked.session).map_err(remote::failure)?;
            printing.read_on(reader.as_mut(), output)?;
            printing.claimed = Some(ahead.epoch);
        }
    }
    output.stdout.flush()?;
    let Some(every) = every else { return Ok(HOLDS) };
    while (output.pause)(every).map_err(CommandError::Wait)? {
        printing.read_on(reader.as_mut(), output)?;
        output.stdout.flush()?;
    }
    Ok(HOLDS)
}

fn check_start(asked: &HeldSession, ahead: &TailLookahead, start: TailStart, waits: bool) -> Result<()> {
    if ahead.epoch == 0 {
        return Err(remote::nothing_held(asked.session));
    }
    let first = match start {
        TailStart::Last(_) => SequenceNumber::MIN,
        TailStart::From(from) => from,
    };
    if !waits && first >= ahead.next {
        let what = format!("record {first} does not exist yet: the next one is {}", ahead.next);
        return Err(CommandError::usage(what, "give an earlier one, or add --follow to wait for it"));
    }
    Ok(())
}

/// Facts about a session before its first record is printed, so that records that a later rollback
/// abandoned are printed as abandoned.
#[derive(Debug, Default)]
struct TailLookahead {
    next: SequenceNumber,
    epoch: u64,
    path: LivePath,
    declared: Declared,
    /// The last records, of which `keep` are printed.
    kept: VecDeque<TailRecord>,
    keep: u64,
    bytes: u64,
    bytes_max: u64,
    failure: Option<CommandError>,
}

/// A record with its own bytes.
#[derive(Debug)]
struct TailRecord {
    sequence: SequenceNumber,
    kind: RecordKind,
    time_us: i64,
    body: Vec<u8>,
}

impl TailRecord {
    fn record(&self) -> Record<'_> {
        let TailRecord { sequence, kind, time_us, body } = self;
        Record { sequence: *sequence, kind: *kind, time_us: *time_us, body }
    }
}

/// Declarations of a session so far.
#[derive(Debug, Default)]
struct Declared {
    names: RecordNames,
    events: BTreeMap<u32, foldlog_codec::body::EventDeclaration>,
    slices: BTreeMap<u32, foldlog_codec::body::SliceDeclaration>,
}

impl Declared {
    fn take(&mut self, record: &Record<'_>) {
        // Names that cannot be decoded are shown as numbers.
        if let (RecordKind::Declare, Ok(declare)) = (record.kind, Declare::decode(record.body)) {
            self.names.learn(&declare);
            self.events.extend(declare.events.into_iter().map(|event| (event.id, event)));
            self.slices.extend(declare.slices.into_iter().map(|slice| (slice.id, slice)));
        }
    }
}

impl TailLookahead {
    fn take(&mut self, met: &PlaceItem<'_>) {
        let record = match met {
            PlaceItem::Record(record) => record,
            PlaceItem::Claim { epoch, .. } => {
                self.epoch = *epoch;
                return;
            }
            _ => return,
        };
        self.next = record.sequence + 1;
        self.declared.take(record);
        match record.rollback() {
            Ok(Some(rollback)) => self.path.add(record.sequence, rollback.to),
            Ok(None) => {}
            Err(error) => {
                let text =
                    format!("record {} cannot be decoded: {}", record.sequence, escape::display(error));
                self.failure = Some(CommandError::Held(text));
            }
        }
        self.keep(record);
    }

    fn keep(&mut self, record: &Record<'_>) {
        if self.keep == 0 {
            return;
        }
        let Record { sequence, kind, time_us, body } = *record;
        self.kept.push_back(TailRecord { sequence, kind, time_us, body: body.to_owned() });
        self.bytes += body.len() as u64;
        while self.kept.len() as u64 > self.keep || self.bytes > self.bytes_max {
            let Some(dropped) = self.kept.pop_front() else { return };
            self.bytes -= dropped.body.len() as u64;
        }
    }
}

/// Prints the records of a reader.
#[derive(Debug)]
struct TailPrinter {
    from: SequenceNumber,
    known: TailBaseline,
    declared: Declared,
    /// Epoch of the last printed claim; `None` while the session is read from its start.
    claimed: Option<u64>,
}

impl TailPrinter {
    fn from_lookahead(ahead: &TailLookahead) -> TailPrinter {
        let Declared { names, events, slices } = &ahead.declared;
        let declared = Declare {
            events: events.values().cloned().collect(),
            slices: slices.values().cloned().collect(),
        };
        let live = ahead.next.checked_sub(1).map(|last| ahead.path.live_at(last)).unwrap_or_default();
        TailPrinter {
            from: SequenceNumber::MIN,
            known: TailBaseline { next: ahead.next, standing: RecordStanding::new(live, &declared) },
            declared: Declared { names: names.clone(), ..Declared::default() },
            claimed: None,
        }
    }

    /// Prints the records that the place has received since the last check.
    fn read_on(&mut self, reader: &mut dyn PlaceReader, output: &mut Output<'_>) -> Result<()> {
        let mut failure = None;
        let read = reader.read_on(&mut |met| {
            if failure.is_none() {
                failure = self.take(&met, output).err();
            }
        });
        match failure {
            Some(failure) => Err(failure),
            None => read.map_err(remote::failure),
        }
    }

    fn take(&mut self, met: &PlaceItem<'_>, output: &mut Output<'_>) -> Result<()> {
        match met {
            PlaceItem::Record(record) => {
                self.declared.take(record);
                if record.sequence >= self.from { self.print(record, output) } else { Ok(()) }
            }
            PlaceItem::Claim { epoch, name } => {
                if self.claimed.is_some_and(|told| told < *epoch) {
                    output.stdout.flush()?;
                    output.note(format_args!(
                        "note: epoch {epoch}: `{}` has claimed the session",
                        escape::text(name)
                    ));
                    self.claimed = Some(*epoch);
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn print(&self, record: &Record<'_>, output: &mut Output<'_>) -> Result<()> {
        print_record(record, &self.declared.names, self.known.path_of(record), output)
    }
}
