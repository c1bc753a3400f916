//! Writes slices as JSON, item by item.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::ops::ControlFlow;

use foldlog_codec::body::Policy;
use foldlog_codec::msgpack::{JsonStream, ValueLimits};
use foldlog_codec::{SequenceNumber, escape};
use serde::Serialize;
use serde::ser::{Error as _, SerializeMap, SerializeSeq, Serializer};
use uuid::Uuid;

use super::{LogReader, SliceReader, StateReader};
use crate::conversation::exported_slices;
use crate::error::{Error, Result};
use crate::snapshot_json::{Export, WrittenSlice, item_versions};

/// Error of the log, stored while a serializer, which cannot carry it, unwinds.
type DeferredError = RefCell<Option<Error>>;

/// Serializes the items of a slice, reading each from the log when it is written.
struct StreamedItems<'a> {
    slice: SliceReader<'a>,
    failure: &'a DeferredError,
}

impl Serialize for StreamedItems<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut seq = serializer.serialize_seq(Some(self.slice.len()))?;
        let mut failed = None;
        let read = self.slice.read(|name, bytes| {
            let item = JsonStream::new(bytes, ValueLimits::default()).map_err(|error| Error::Decode {
                name: self.slice.name().to_owned(),
                sequence: name.sequence,
                reason: error.to_string(),
            })?;
            failed = seq.serialize_element(&item).err();
            Ok(if failed.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
        });
        if let Some(failed) = failed {
            return Err(failed);
        }
        if let Err(error) = read {
            let message = S::Error::custom(&error);
            self.failure.replace(Some(error));
            return Err(message);
        }
        seq.end()
    }
}

/// Serializes the slices of a state, each with its policy and its items.
struct Slices<'a> {
    state: &'a StateReader,
    only: Option<&'a str>,
    failure: &'a DeferredError,
}

impl Serialize for Slices<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let wanted = |slice: &SliceReader<'_>| self.only.is_none_or(|only| only == slice.name());
        let slices = self.state.slices().filter(wanted).map(|slice| {
            let items = StreamedItems { slice, failure: self.failure };
            (slice.name(), OneSlice { policy: slice.policy().name(), items })
        });
        serializer.collect_map(slices)
    }
}

#[derive(Serialize)]
struct OneSlice<'a> {
    policy: &'static str,
    items: StreamedItems<'a>,
}

/// Serializes a state as `foldlog state --json` prints it.
#[derive(Serialize)]
struct Document<'a, T> {
    sequence: SequenceNumber,
    slices: Slices<'a>,
    #[serde(flatten)]
    beside: BTreeMap<&'a str, &'a T>,
}

impl StateReader {
    /// Writes the slices, or only the one named `only`, as JSON: `{"sequence": 7, "slices":
    /// {"plan": {"policy": "state", "items": []}}}`. A field `beside` follows the slices.
    ///
    /// # Errors
    ///
    /// [`Error::Decode`] if an item is not MessagePack, [`Error::Io`] if `out` fails or the log
    /// cannot be read, [`Error::Object`] if an object is missing or damaged. Part of the JSON may
    /// have been written by then.
    pub fn write_json(
        &self,
        only: Option<&str>,
        beside: Option<(&str, &impl Serialize)>,
        out: impl Write,
    ) -> Result<()> {
        let failure = DeferredError::default();
        let slices = Slices { state: self, only, failure: &failure };
        let sequence = self.position().unwrap_or_default();
        let document = Document { sequence, slices, beside: beside.into_iter().collect() };
        let written = escape::write_json(out, &document);
        convert_error(written, &failure)
    }
}

/// Converts the result of a serializer to the error of the log or of the output.
fn convert_error(written: serde_json::Result<()>, failure: &DeferredError) -> Result<()> {
    written.map_err(|error| match failure.take() {
        Some(failure) => failure,
        None if error.is_io() => Error::io("write", "the output", error.into()),
        None => Error::Export(error.to_string()),
    })
}

/// Serializes an export: its head, then its slices.
struct ExportDocument<'a> {
    head: Export,
    slices: ExportedSlices<'a>,
}

impl Serialize for ExportDocument<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        self.head.serialize_head(&mut map)?;
        map.serialize_entry("slices", &self.slices)?;
        map.end()
    }
}

struct ExportedSlices<'a> {
    slices: &'a [SliceReader<'a>],
    /// Slices of conversations and adapters' states, sorted among the others by their names.
    conversations: &'a [crate::ExportedSlice],
    failure: &'a DeferredError,
}

impl Serialize for ExportedSlices<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut conversations = self.conversations.iter().peekable();
        let mut seq = serializer.serialize_seq(None)?;
        for slice in self.slices {
            while let Some(before) = conversations.next_if(|one| one.slice_type.as_str() <= slice.name()) {
                seq.serialize_element(&before.exact())?;
            }
            let item_versions = item_versions(|| slice.names().map(|name| name.version)).into();
            let items = StreamedItems { slice: *slice, failure: self.failure };
            let (slice_type, item_type) = (slice.name(), slice.item());
            seq.serialize_element(&WrittenSlice { slice_type, item_type, items, item_versions })?;
        }
        for behind in conversations {
            seq.serialize_element(&behind.exact())?;
        }
        seq.end()
    }
}

impl LogReader {
    /// Writes the slices of these policies as of `position`, item by item, in the form in which
    /// [`Export::to_json`](crate::Export::to_json) writes the result of
    /// [`export_at`](LogReader::export_at). `children` are the sessions forked from this one or
    /// created for it, which only the store knows.
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchPosition`] if the log has no record at `position`, [`Error::Decode`] if an
    /// item is not MessagePack, [`Error::Io`] if `out` fails or the log cannot be read,
    /// [`Error::Object`] if an object is missing or damaged, [`Error::OverBudget`] if the fold
    /// exceeds [`LogReader::memory_bytes`]. Part of the JSON may have been written by then.
    pub fn write_export(
        &self,
        position: impl Into<SequenceNumber>,
        policies: &BTreeSet<Policy>,
        children: Vec<Uuid>,
        out: impl Write,
    ) -> Result<()> {
        self.write_exported(position.into(), policies, &[], children, |exported| {
            escape::write_json_pretty(out, exported)
        })
    }

    /// Writes the same as [`write_export`](LogReader::write_export), on one line, without children
    /// and without the slices of these names.
    pub fn write_export_without(
        &self,
        position: impl Into<SequenceNumber>,
        policies: &BTreeSet<Policy>,
        left_out: &[&str],
        out: impl Write,
    ) -> Result<()> {
        self.write_exported(position.into(), policies, left_out, Vec::new(), |exported| {
            escape::write_json(out, exported)
        })
    }

    fn write_exported(
        &self,
        position: SequenceNumber,
        policies: &BTreeSet<Policy>,
        left_out: &[&str],
        children_ids: Vec<Uuid>,
        write: impl FnOnce(&ExportDocument<'_>) -> serde_json::Result<()>,
    ) -> Result<()> {
        let state = self.state_reader_at(position)?;
        let time_us = self.places.time_of(&self.storage, position)?;
        let wanted = |slice: &SliceReader<'_>| {
            policies.contains(&slice.policy()) && !slice.is_empty() && !left_out.contains(&slice.name())
        };
        let slices: Vec<SliceReader<'_>> = state.slices().filter(wanted).collect();
        let of = |slice: &SliceReader<'_>| (slice.name().to_owned(), slice.policy().name().to_owned());
        let conversations = match policies.contains(&Policy::Log) {
            true => exported_slices(&self.conversations_at(position)?, &self.adapter_states_at(position)?)?,
            false => Vec::new(),
        };
        let mut policies: BTreeMap<String, String> = slices.iter().map(of).collect();
        for slice in &conversations {
            policies.insert(slice.slice_type.clone(), Policy::Log.name().to_owned());
        }
        let head = Export {
            parent_id: self.opening_record().parent.map(|parent| parent.session()),
            children_ids,
            tags: state.tags().clone(),
            policies,
            open_operations: state.open_operations(),
            suspended_operations: self.suspended_at(position),
            ..Export::new(time_us)?
        };
        let failure = DeferredError::default();
        let slices = ExportedSlices { slices: &slices, conversations: &conversations, failure: &failure };
        convert_error(write(&ExportDocument { head, slices }), &failure)
    }
}
