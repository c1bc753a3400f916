//! `foldlog tail URL/sessions/ID`: the last records that a place holds of a session, and further ones as it gets them. Nothing is
//! copied.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use foldlog::{Kind, LivePath, Record, SequenceNumber};
use foldlog_codec::body::{Declare, Rollback, ToolEnd};
use foldlog_codec::escape;
use foldlog_codec::record::Names;
use foldlog_remote::{Met, PlaceReader};

use super::HeldSession;
use crate::failure::{Failure, HOLDS, Result};
use crate::output::Output;
use crate::verbs::show::{LIVE, Standing, Timeline, line, value};
use crate::verbs::tail::Start;

/// Most bytes of records that are kept to be printed last, if the command line says nothing.
const KEPT_BYTES_MAX: u64 = 64 << 20;

/// Lists the records from `start` on, and with `every` further ones, for which the place is asked after each such time, until the
/// process is asked to end.
///
/// # Errors
///
/// - [`Failure::Usage`] if the place cannot be opened or asked, or holds no record `start` yet and nobody waits for it.
/// - [`Failure::Held`] if what it holds does not verify.
pub(crate) fn tail(
    asked: &HeldSession,
    start: Start,
    every: Option<Duration>,
    output: &mut Output<'_>,
) -> Result<u8> {
    if every.is_some() {
        // The signals are handled before the first line, so that whoever has seen a line can ask this process to end.
        (output.pause)(Duration::ZERO).map_err(Failure::Wait)?;
    }
    let place = super::place(&asked.url)?;
    let mut reader = place.reader(asked.session).map_err(super::failure)?;
    let keep = match start {
        Start::Last(count) => count,
        Start::From(_) => 0,
    };
    let mut ahead =
        Ahead { keep, bytes_max: output.memory_bytes.unwrap_or(KEPT_BYTES_MAX), ..Ahead::default() };
    reader.read_on(&mut |met| ahead.take(&met)).map_err(super::failure)?;
    if let Some(failure) = ahead.failure.take() {
        return Err(failure);
    }
    check_start(asked, &ahead, start, every.is_some())?;
    let mut printing = Printing::behind(&ahead);
    if !output.json() {
        output.line(Timeline::HEADINGS)?;
    }
    match start {
        Start::Last(_) => {
            for kept in &ahead.kept {
                printing.print(&kept.record(), output)?;
            }
            printing.claimed = Some(ahead.epoch);
        }
        Start::From(from) => {
            printing.from = from;
            // From its beginning, since what stands there was not kept.
            reader = place.reader(asked.session).map_err(super::failure)?;
            printing.read_on(reader.as_mut(), output)?;
            printing.claimed = Some(ahead.epoch);
        }
    }
    output.stdout.flush()?;
    let Some(every) = every else { return Ok(HOLDS) };
    while (output.pause)(every).map_err(Failure::Wait)? {
        printing.read_on(reader.as_mut(), output)?;
        output.stdout.flush()?;
    }
    Ok(HOLDS)
}

fn check_start(asked: &HeldSession, ahead: &Ahead, start: Start, waits: bool) -> Result<()> {
    if ahead.epoch == 0 {
        return Err(super::nothing_held(asked.session));
    }
    let first = match start {
        Start::Last(_) => SequenceNumber::MIN,
        Start::From(from) => from,
    };
    if !waits && first >= ahead.next {
        let what = format!("there is no record {first} yet: the session has {}", ahead.next);
        return Err(Failure::usage(what, "give an earlier one, or --follow to wait for it"));
    }
    Ok(())
}

/// Holds what is known of a session before its first record is printed, so that records that a later rollback abandoned are printed
/// as abandoned.
#[derive(Debug, Default)]
struct Ahead {
    next: SequenceNumber,
    epoch: u64,
    path: LivePath,
    declared: Declared,
    /// The last records, of which `keep` are to be printed.
    kept: VecDeque<Kept>,
    keep: u64,
    bytes: u64,
    bytes_max: u64,
    failure: Option<Failure>,
}

/// Is a record with its own bytes.
#[derive(Debug)]
struct Kept {
    sequence: SequenceNumber,
    kind: Kind,
    time_us: i64,
    body: Vec<u8>,
}

impl Kept {
    fn record(&self) -> Record<'_> {
        let Kept { sequence, kind, time_us, body } = self;
        Record { sequence: *sequence, kind: *kind, time_us: *time_us, body }
    }
}

/// Holds what a session has declared so far.
#[derive(Debug, Default)]
struct Declared {
    names: Names,
    events: BTreeMap<u32, foldlog_codec::body::EventDeclaration>,
    slices: BTreeMap<u32, foldlog_codec::body::SliceDeclaration>,
}

impl Declared {
    fn take(&mut self, record: &Record<'_>) {
        // What does not decode is named by its numbers.
        if let (Kind::DECLARE, Ok(declare)) = (record.kind, Declare::decode(record.body)) {
            self.names.learn(&declare);
            self.events.extend(declare.events.into_iter().map(|event| (event.id, event)));
            self.slices.extend(declare.slices.into_iter().map(|slice| (slice.id, slice)));
        }
    }
}

impl Ahead {
    fn take(&mut self, met: &Met<'_>) {
        let record = match met {
            Met::Record(record) => record,
            Met::Claim { epoch, .. } => {
                self.epoch = *epoch;
                return;
            }
            _ => return,
        };
        self.next = record.sequence + 1;
        self.declared.take(record);
        let to = match record.kind {
            Kind::ROLLBACK => Rollback::decode(record.body).map(|rollback| Some(rollback.to)),
            // The end of a call that was not committed is the rollback to its begin.
            Kind::TOOL_END => ToolEnd::decode(record.body).map(|end| end.rolled_back_to()),
            _ => Ok(None),
        };
        match to {
            Ok(Some(to)) => self.path.add(record.sequence, to),
            Ok(None) => {}
            Err(error) => {
                let text = format!("record {} does not decode: {}", record.sequence, escape::shown(error));
                self.failure = Some(Failure::Held(text));
            }
        }
        self.keep(record);
    }

    fn keep(&mut self, record: &Record<'_>) {
        if self.keep == 0 {
            return;
        }
        let Record { sequence, kind, time_us, body } = *record;
        self.kept.push_back(Kept { sequence, kind, time_us, body: body.to_owned() });
        self.bytes += body.len() as u64;
        while self.kept.len() as u64 > self.keep || self.bytes > self.bytes_max {
            let Some(dropped) = self.kept.pop_front() else { return };
            self.bytes -= dropped.body.len() as u64;
        }
    }
}

/// Prints what a reader meets.
#[derive(Debug)]
struct Printing {
    from: SequenceNumber,
    /// Sequence number behind what was there before the first line: what comes later is live when it is printed.
    known: SequenceNumber,
    standing: Standing,
    declared: Declared,
    /// Epoch of the claim that was told last; `None` where the session is read from its beginning.
    claimed: Option<u64>,
}

impl Printing {
    fn behind(ahead: &Ahead) -> Printing {
        let Declared { names, events, slices } = &ahead.declared;
        let declared = Declare {
            events: events.values().cloned().collect(),
            slices: slices.values().cloned().collect(),
        };
        let live = ahead.next.checked_sub(1).map(|last| ahead.path.live_at(last)).unwrap_or_default();
        Printing {
            from: SequenceNumber::MIN,
            known: ahead.next,
            standing: Standing::new(live, &declared),
            declared: Declared { names: names.clone(), ..Declared::default() },
            claimed: None,
        }
    }

    /// Prints what the place has got since the last look.
    fn read_on(&mut self, reader: &mut dyn PlaceReader, output: &mut Output<'_>) -> Result<()> {
        let mut failure = None;
        let read = reader.read_on(&mut |met| {
            if failure.is_none() {
                failure = self.take(&met, output).err();
            }
        });
        match failure {
            Some(failure) => Err(failure),
            None => read.map_err(super::failure),
        }
    }

    fn take(&mut self, met: &Met<'_>, output: &mut Output<'_>) -> Result<()> {
        match met {
            Met::Record(record) => {
                self.declared.take(record);
                if record.sequence >= self.from { self.print(record, output) } else { Ok(()) }
            }
            Met::Claim { epoch, name } => {
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
        let path = if record.sequence >= self.known { LIVE } else { self.standing.path_of(record) };
        match output.json() {
            true => output.value(&value(record, &self.declared.names, path)),
            false => output.line(line(record, &self.declared.names, path)),
        }
    }
}
