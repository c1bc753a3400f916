//! Writes slices as JSON, item by item.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::ops::ControlFlow;

use foldlog_codec::body::Policy;
use foldlog_codec::msgpack::{JsonStream, ValueLimits};
use foldlog_codec::{SequenceNumber, escape};
use serde::ser::{Error as _, Serialize, SerializeMap, SerializeSeq, Serializer};
use uuid::Uuid;

use super::{LogReader, SliceReader, StateReader};
use crate::conversation::exported_slices;
use crate::error::{Error, Result};
use crate::snapshot_json::{ExportHead, item_versions};

impl SliceReader<'_> {
    /// Returns the items as a list for serde. Each item is read from the log when it is serialized.
    pub fn streamed_items(&self) -> impl Serialize + '_ {
        StreamedItems { slice: self, failure: None }
    }
}

/// Error of the log, stored while a serializer, which cannot carry it, unwinds.
type DeferredError = RefCell<Option<Error>>;

/// Serializes the items of a slice, reading each from the log when it is written.
struct StreamedItems<'a> {
    slice: &'a SliceReader<'a>,
    failure: Option<&'a DeferredError>,
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
            if let Some(slot) = self.failure {
                slot.replace(Some(error));
            }
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
        let mut map = serializer.serialize_map(None)?;
        let wanted = |slice: &SliceReader<'_>| self.only.is_none_or(|only| only == slice.name());
        for slice in self.state.slices().filter(wanted) {
            map.serialize_entry(slice.name(), &OneSlice { slice: &slice, failure: self.failure })?;
        }
        map.end()
    }
}

struct OneSlice<'a> {
    slice: &'a SliceReader<'a>,
    failure: &'a DeferredError,
}

impl Serialize for OneSlice<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("policy", self.slice.policy().name())?;
        map.serialize_entry("items", &StreamedItems { slice: self.slice, failure: Some(self.failure) })?;
        map.end()
    }
}

/// Serializes a state as `foldlog state --json` prints it.
struct Document<'a, T> {
    sequence: SequenceNumber,
    slices: Slices<'a>,
    beside: Option<(&'a str, &'a T)>,
}

impl<T: Serialize> Serialize for Document<'_, T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("sequence", &self.sequence)?;
        map.serialize_entry("slices", &self.slices)?;
        if let Some((name, value)) = self.beside {
            map.serialize_entry(name, value)?;
        }
        map.end()
    }
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
        let document = Document { sequence: self.position().unwrap_or_default(), slices, beside };
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
    head: &'a ExportHead,
    slices: ExportedSlices<'a>,
}

impl Serialize for ExportDocument<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        self.head.serialize_into(&mut map)?;
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
            seq.serialize_element(&ExportedSlice { slice, failure: self.failure })?;
        }
        for behind in conversations {
            seq.serialize_element(&behind.exact())?;
        }
        seq.end()
    }
}

/// Serializes a slice in the form of [`ExportedSlice`](crate::ExportedSlice).
struct ExportedSlice<'a> {
    slice: &'a SliceReader<'a>,
    failure: &'a DeferredError,
}

impl Serialize for ExportedSlice<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("slice_type", self.slice.name())?;
        map.serialize_entry("item_type", self.slice.item())?;
        map.serialize_entry("items", &StreamedItems { slice: self.slice, failure: Some(self.failure) })?;
        let versions = item_versions(|| self.slice.names().map(|name| name.version));
        if !versions.is_empty() {
            map.serialize_entry("item_versions", &versions)?;
        }
        map.end()
    }
}

/// Describes the contents of an export.
struct ExportRequest<'a> {
    position: SequenceNumber,
    policies: &'a BTreeSet<Policy>,
    left_out: &'a [&'a str],
    children: Vec<Uuid>,
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
        let of = ExportRequest { position: position.into(), policies, left_out: &[], children };
        self.write_exported(of, |exported| escape::write_json_pretty(out, exported))
    }

    /// Writes the same as [`write_export`](LogReader::write_export), on one line, without children
    /// and without the slices of these names.
    ///
    /// # Errors
    ///
    /// The errors of [`write_export`](LogReader::write_export).
    pub fn write_export_without(
        &self,
        position: impl Into<SequenceNumber>,
        policies: &BTreeSet<Policy>,
        left_out: &[&str],
        out: impl Write,
    ) -> Result<()> {
        let of = ExportRequest { position: position.into(), policies, left_out, children: Vec::new() };
        self.write_exported(of, |exported| escape::write_json(out, exported))
    }

    fn write_exported(
        &self,
        ExportRequest { position, policies, left_out, children }: ExportRequest<'_>,
        write: impl FnOnce(&ExportDocument<'_>) -> serde_json::Result<()>,
    ) -> Result<()> {
        let state = self.state_reader_at(position)?;
        let mut time_us = 0;
        self.records(position, position, |record| {
            time_us = record.time_us;
            Ok(())
        })?;
        let wanted = |slice: &SliceReader<'_>| {
            policies.contains(&slice.policy()) && !slice.is_empty() && !left_out.contains(&slice.name())
        };
        let slices: Vec<SliceReader<'_>> = state.slices().filter(wanted).collect();
        let of = |slice: &SliceReader<'_>| (slice.name().to_owned(), slice.policy().name().to_owned());
        let with_logs = policies.contains(&Policy::Log);
        let conversations = match with_logs {
            true => exported_slices(&self.conversations_at(position)?, &self.adapter_states_at(position)?)?,
            false => Vec::new(),
        };
        let mut policies: BTreeMap<String, String> = slices.iter().map(of).collect();
        for slice in &conversations {
            policies.insert(slice.slice_type.clone(), Policy::Log.name().to_owned());
        }
        let parent = self.opening_record().parent.map(|parent| parent.session());
        let head = ExportHead::new(time_us, parent, children, state.tags().clone(), policies)?
            .with_open_operations(state.open_operations())
            .with_suspended_operations(self.suspended_at(position));
        let failure = DeferredError::default();
        let slices = ExportedSlices { slices: &slices, conversations: &conversations, failure: &failure };
        convert_error(write(&ExportDocument { head: &head, slices }), &failure)
    }
}
