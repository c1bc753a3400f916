//! foldlog: sessions, and the log alone.

use std::fmt;
use std::path::{Path, PathBuf};

use foldlog::inspect;
use foldlog::testkit::RawLog;
use foldlog::{Durability, Event, Policy, Session, SessionTypes, Slice, Store, StoreOptions};
use foldlog_codec::RecordKind;
use serde::de::Visitor;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{ContestantReader, ContestantWriter, Survives};
use crate::measure::Result;

/// Contains a payload, as the event and as its item of STATE.
#[derive(Clone)]
pub struct PayloadEvent(pub Vec<u8>);

impl Serialize for PayloadEvent {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        serializer.serialize_bytes(&self.0)
    }
}

impl<'de> Deserialize<'de> for PayloadEvent {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<PayloadEvent, D::Error> {
        struct PayloadVisitor;
        impl Visitor<'_> for PayloadVisitor {
            type Value = PayloadEvent;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("bytes")
            }

            fn visit_bytes<E>(self, bytes: &[u8]) -> std::result::Result<PayloadEvent, E> {
                Ok(PayloadEvent(bytes.to_vec()))
            }

            fn visit_byte_buf<E>(self, bytes: Vec<u8>) -> std::result::Result<PayloadEvent, E> {
                Ok(PayloadEvent(bytes))
            }
        }
        deserializer.deserialize_byte_buf(PayloadVisitor)
    }
}

impl Event for PayloadEvent {
    const NAME: &'static str = "kept";
}

/// Contains all payloads. As STATE they are in memory; as LOG they are in the log, like the records
/// of the other logs.
struct PayloadSlice;

impl Slice for PayloadSlice {
    const NAME: &'static str = "all_kept";
    type Item = PayloadEvent;
}

pub fn session_types(policy: Policy) -> foldlog::Result<SessionTypes> {
    SessionTypes::builder().slice_with::<PayloadSlice>(policy).append_all::<PayloadSlice>().build()
}

/// Returns whether a record of this kind contains a payload.
fn is_payload(kind: RecordKind) -> bool {
    kind == RecordKind::Dispatch
}

/// `Process` is for records that survive a kill, `Every` for those that survive a power cut.
fn durability(survives: Survives) -> Durability {
    match survives {
        Survives::Kill | Survives::KillOnceSettled => Durability::Process,
        Survives::PowerCut => Durability::Every,
    }
}

fn store(dir: &Path, survives: Survives) -> foldlog::Result<Store> {
    let options = StoreOptions { durability: durability(survives), ..StoreOptions::default() };
    Store::open_with(dir, options)
}

struct OfSession(Session);

impl ContestantWriter for OfSession {
    fn append(&mut self, _: u64, payload: &[u8]) -> Result<()> {
        self.0.dispatch(PayloadEvent(payload.to_vec()))?;
        Ok(())
    }

    fn close(self: Box<Self>) -> Result<()> {
        Ok(self.0.close()?)
    }
}

/// Opens a session for each writer, in one store.
pub fn sessions(
    dir: &Path,
    survives: Survives,
    writers: usize,
    policy: Policy,
) -> Result<Vec<Box<dyn ContestantWriter>>> {
    let (store, types) = (store(dir, survives)?, session_types(policy)?);
    let writer = |_| Ok(Box::new(OfSession(store.create(&types)?)) as Box<dyn ContestantWriter>);
    (0..writers).map(writer).collect()
}

struct OfLog {
    log: RawLog,
    durability: Durability,
}

impl ContestantWriter for OfLog {
    fn append(&mut self, _: u64, payload: &[u8]) -> Result<()> {
        self.log.append(payload, self.durability)?;
        Ok(())
    }

    fn close(self: Box<Self>) -> Result<()> {
        Ok(self.log.close()?)
    }
}

/// Opens a log for each writer. They share a background thread.
pub fn logs(dir: &Path, survives: Survives, writers: usize) -> Result<Vec<Box<dyn ContestantWriter>>> {
    let first = RawLog::create(dir.join("0"), &StoreOptions::default())?;
    let others = (1..writers).map(|number| first.create_beside(dir.join(number.to_string())));
    let mut logs = others.collect::<foldlog::Result<Vec<RawLog>>>()?;
    logs.push(first);
    let writer = |log| Box::new(OfLog { log, durability: durability(survives) }) as Box<dyn ContestantWriter>;
    Ok(logs.into_iter().map(writer).collect())
}

struct OpenState(Session);

impl ContestantReader for OpenState {
    fn scan(&mut self, visit: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        self.0.view::<PayloadSlice>()?.iter().try_for_each(|kept| visit(&kept.0))
    }

    /// Counts the values, which are in the memory of an open session: opening folded them.
    fn load(&mut self) -> Result<u64> {
        let view = self.0.view::<PayloadSlice>()?;
        Ok(std::hint::black_box(&view).iter().filter(|kept| !kept.0.is_empty()).count() as u64)
    }
}

struct OpenLog(Session);

impl ContestantReader for OpenLog {
    fn scan(&mut self, visit: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        self.0.log().slice::<PayloadSlice>()?.iter().try_for_each(|kept| visit(&kept?.0))
    }

    /// Walks the log, which checks each frame's CRC and its predecessor.
    fn check(&mut self, size: usize) -> Result<u64> {
        let mut checked = 0;
        inspect::walk(self.0.dir(), &mut |frame| {
            let body = std::hint::black_box(frame.record.body);
            checked += u64::from(is_payload(frame.record.kind) && body.len() > size);
            Ok(())
        })?;
        Ok(checked)
    }
}

fn opened(dir: &Path, policy: Policy) -> Result<Session> {
    let (store, types) = (store(dir, Survives::Kill)?, session_types(policy)?);
    let id = store.session_ids()?.into_iter().next().ok_or("the store holds no session")?;
    Ok(store.open_session(id, &types)?)
}

pub fn open_state(dir: &Path) -> Result<Box<dyn ContestantReader>> {
    Ok(Box::new(OpenState(opened(dir, Policy::State)?)))
}

pub fn open_log(dir: &Path) -> Result<Box<dyn ContestantReader>> {
    Ok(Box::new(OpenLog(opened(dir, Policy::Log)?)))
}

/// Returns the numbers of the first records of segments.
pub fn rollovers(dir: &Path) -> Result<Vec<u64>> {
    let (mut numbers, mut number, mut segment) = (Vec::new(), 0, None::<PathBuf>);
    let session = opened(dir, Policy::Log)?;
    inspect::walk(session.dir(), &mut |frame| {
        if !is_payload(frame.record.kind) {
            return Ok(());
        }
        if segment.as_deref() != Some(frame.segment) {
            if segment.is_some() {
                numbers.push(number);
            }
            segment = Some(frame.segment.to_owned());
        }
        number += 1;
        Ok(())
    })?;
    Ok(numbers)
}
