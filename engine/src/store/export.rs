//! Exports sessions to snapshot JSON, and imports them; see
//! [`snapshot_json`](crate::snapshot_json).

use foldlog_codec::SequenceNumber;
use std::collections::BTreeSet;

use foldlog_codec::RecordKind;
use foldlog_codec::body::{Declare, Import, ImportedSlice, Payload, Policy, SliceDeclaration};
use foldlog_codec::msgpack::Value;
use smol_str::SmolStr;

use super::Store;
use super::conversations::ImportedConversations;
use crate::conversation::{
    ADAPTER_STATES, AdapterStateSnapshot, CONVERSATION, Conversation, exported_slices,
};
use crate::error::{Error, Result, operation_numbers};
use crate::inspect::LogReader;
use crate::names::DeclaredNames;
use crate::options::SessionOptions;
use crate::session::{Session, SessionLog, Snapshot, State};
use crate::snapshot_json::{Export, ExportedSlice, item_versions};
use crate::types::{RecordedBytes, SessionTypes, Slice, ToolInvocations, check_payload, default_policy};

/// Items in their recorded form, each with its version.
type RecordedItems = Vec<(Vec<u8>, u32)>;

/// Options of an import.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImportOptions {
    /// Options of the new session.
    pub session: SessionOptions,
    /// Whether slices that the host did not declare are imported without types. If `false`, such
    /// slices make the import fail with an error that names all of them. If `true`, items of a
    /// slice `tool_invoked` that are not the engine's own [`ToolInvoked`](crate::ToolInvoked) are
    /// imported into a slice `tool_invoked.imported`.
    pub keep_unknown: bool,
}

/// Exports a state's slices of these policies.
fn export_of(
    state: &State,
    created_at_us: i64,
    policies: &BTreeSet<Policy>,
    conversations: impl FnOnce() -> Result<(Vec<Conversation>, Vec<AdapterStateSnapshot>)>,
) -> Result<Export> {
    let (tags, open_operations) = (state.tags.clone(), state.open_operations.clone());
    let mut export = Export { tags, open_operations, ..Export::new(created_at_us)? };
    for (name, slice) in state.slices.iter().filter(|(_, slice)| policies.contains(&slice.policy)) {
        if slice.items.is_empty() {
            continue;
        }
        let items: Result<Vec<Value>> = slice.items.iter().map(|item| item.value()).collect();
        export.policies.insert(name.clone(), slice.policy.name().to_owned());
        export.slices.push(ExportedSlice {
            slice_type: name.clone(),
            item_type: slice.item.clone(),
            items: items?,
            item_versions: item_versions(|| slice.items.iter().map(|item| item.version)),
        });
    }
    if policies.contains(&Policy::Log) {
        let (conversations, states) = conversations()?;
        for slice in exported_slices(&conversations, &states)? {
            export.policies.insert(slice.slice_type.clone(), Policy::Log.name().to_owned());
            let at = export.slices.partition_point(|other| other.slice_type < slice.slice_type);
            export.slices.insert(at, slice);
        }
    }
    Ok(export)
}

impl SessionLog<'_> {
    /// Exports the session's current STATE and LOG slices. CACHE slices are left out, since they
    /// can be computed again.
    ///
    /// ```
    /// # use foldlog::{Event, Session, SessionTypes, Slice, Store};
    /// # #[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
    /// # struct Said(String);
    /// # impl Event for Said {
    /// #     const NAME: &'static str = "chat.said";
    /// # }
    /// # struct Chat;
    /// # impl Slice for Chat {
    /// #     const NAME: &'static str = "chat";
    /// #     type Item = Said;
    /// # }
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let directory = tempfile::tempdir()?;
    /// # let types = SessionTypes::builder().slice::<Chat>().append_all::<Chat>().build()?;
    /// # let store = Store::open(directory.path())?;
    /// # let session = store.create(&types)?;
    /// session.dispatch(Said("hello".to_owned()))?;
    /// let json = session.log().export()?.to_json()?;
    /// assert!(json.contains("hello"));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Decode`] if a recorded item is not MessagePack, [`Error::Io`] if the log or the
    /// store's directory cannot be read, [`Error::Object`] if an object is missing or damaged.
    pub fn export(&self) -> Result<Export> {
        let policies = BTreeSet::from([Policy::State, Policy::Log]);
        self.export_state(
            &self.session.dynamic().state()?,
            self.session.now_us(),
            SequenceNumber::MAX,
            &policies,
        )
    }

    /// Exports the slices of a snapshot's policies, as of the time of the snapshot.
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchPosition`] if the log has no record at the snapshot's position; otherwise the
    /// errors of [`export`](crate::SessionLog::export).
    pub fn export_snapshot(&self, snapshot: &Snapshot) -> Result<Export> {
        let state = self.session.dynamic().state_at(snapshot.position)?;
        self.export_state(&state, snapshot.time_us, snapshot.position, &snapshot.policies)
    }

    /// Exports the slices of these policies as of `position`.
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchPosition`] if the log has no record at `position`; otherwise the errors of
    /// [`export`](crate::SessionLog::export).
    pub fn export_at(
        &self,
        position: impl Into<SequenceNumber>,
        policies: &BTreeSet<Policy>,
    ) -> Result<Export> {
        let position = position.into();
        let source = self.session.log_source();
        let time_us = source.places.time_of(&source.storage, position)?;
        self.export_state(&self.session.dynamic().state_at(position)?, time_us, position, policies)
    }

    fn export_state(
        &self,
        state: &State,
        time_us: i64,
        position: SequenceNumber,
        policies: &BTreeSet<Policy>,
    ) -> Result<Export> {
        let conversation = self.session.conversation();
        let recorded = || {
            let read = |evaluation: &SmolStr| conversation.read_at(evaluation, position).transpose();
            let evaluations = conversation.evaluations_at(position);
            let conversations: Result<_> = evaluations.iter().filter_map(read).collect();
            Ok((conversations?, conversation.adapter_states_at(position)?))
        };
        Ok(Export {
            suspended_operations: self.session.calls().suspended_at(position),
            parent_id: self.session.parent().map(|parent| parent.session()),
            children_ids: self.session.store().children(self.session.id())?,
            ..export_of(state, time_us, policies, recorded)?
        })
    }
}

impl LogReader {
    /// Exports the slices of these policies as of `position`. The log may be outside of any store,
    /// so [`Export::children_ids`] is empty.
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchPosition`] if the log has no record at `position`, [`Error::Decode`] if a
    /// recorded item is not MessagePack, [`Error::OverBudget`] if the fold exceeds
    /// [`LogReader::memory_bytes`], [`Error::Object`] if an object is missing or damaged,
    /// [`Error::Io`] if the log cannot be read.
    pub fn export_at(
        &self,
        position: impl Into<SequenceNumber>,
        policies: &BTreeSet<Policy>,
    ) -> Result<Export> {
        let position = position.into();
        let state = self.state_at(position)?;
        let time_us = self.places.time_of(&self.storage, position)?;
        let recorded = || Ok((self.conversations_at(position)?, self.adapter_states_at(position)?));
        Ok(Export {
            suspended_operations: self.suspended_at(position),
            parent_id: self.opening_record().parent.map(|parent| parent.session()),
            ..export_of(&state, time_us, policies, recorded)?
        })
    }
}

impl Store {
    /// Creates a session with the slices of an export, including LOG slices. Tags in the options
    /// override the export's.
    ///
    /// # Errors
    ///
    /// [`Error::SlicesNotRegistered`] with all slices that the host did not declare, unless
    /// [`keep_unknown`](ImportOptions::keep_unknown) is set; [`Error::Export`] if operations were
    /// open, or waited for a decision, when the export was taken, or if an item does not fit the
    /// host's type; [`Error::PolicyMismatch`] if the host declares another policy for a slice;
    /// [`Error::Decode`] or [`Error::NewerVersion`] if an item of another version cannot be read;
    /// [`Error::TooLarge`] if the import exceeds a limit; otherwise the errors of
    /// [`create_with`](Store::create_with). On errors no session remains.
    pub fn import(&self, export: &Export, types: &SessionTypes, options: ImportOptions) -> Result<Session> {
        if !export.open_operations.is_empty() {
            let open = operation_numbers(&export.open_operations);
            return Err(Error::Export(format!("it was taken while operations {open} were open")));
        }
        if !export.suspended_operations.is_empty() {
            let waiting = operation_numbers(&export.suspended_operations);
            return Err(Error::Export(format!(
                "it was taken while operations {waiting} were suspended: settle them and export again"
            )));
        }
        if options.keep_unknown
            && let Some(renamed) = with_foreign_calls_renamed(export, types)?
        {
            return self.import(&renamed, types, options);
        }
        let unknown: Vec<String> = export
            .slices
            .iter()
            .filter(|slice| !is_conversation(slice) && types.slice(&slice.slice_type).is_none())
            .map(|slice| slice.slice_type.clone())
            .collect();
        if !unknown.is_empty() && !options.keep_unknown {
            return Err(Error::SlicesNotRegistered(unknown));
        }
        let mut declare = Declare::default();
        let mut recorded: Vec<(u32, RecordedItems)> = Vec::new();
        for (id, slice) in (0..).zip(export.slices.iter().filter(|slice| !is_conversation(slice))) {
            let name = slice.slice_type.clone();
            let stated = export.policies.get(&name).and_then(|policy| Policy::from_name(policy));
            let (policy, item) = match types.slice(&name) {
                Some(known) => {
                    if let Some(recorded) = stated.filter(|stated| *stated != known.policy) {
                        let declared = known.policy;
                        return Err(Error::PolicyMismatch { slice: name, declared, recorded });
                    }
                    (known.policy, known.item_name.to_string())
                }
                None => (stated.unwrap_or_else(|| default_policy(&name)), slice.item_type.clone()),
            };
            recorded.push((id, import_items(types, slice, export.is_exact())?));
            declare.slices.push(SliceDeclaration { id, name, policy, item });
        }
        DeclaredNames::default().check_len(&declare)?;
        let mut large = self.import_large(&mut recorded);
        let parts = parts(&recorded);
        // `Opened`, `Declare` and all of `Import` come first.
        let said_from = 2 + parts.len() as u64;
        let mut conversations = ImportedConversations::new(said_from, self.inner.options.object_bytes_min);
        let said = export.slices.iter().filter(|slice| is_conversation(slice));
        said.into_iter().try_for_each(|slice| conversations.add(slice))?;
        large.append(&mut conversations.large);
        // The session's first record sets the tags of the options. This one comes after it and must
        // not override them.
        let own = &options.session.tags;
        let tags = export.tags.iter().filter(|(key, _)| !own.contains_key(*key));
        let mut first = Import {
            from: export.parent_id,
            exported_at_us: Some(export.created_at_us()?),
            tags: tags.map(|(key, value)| (key.clone(), value.clone())).collect(),
            slices: Vec::new(),
        };
        let mut rest = vec![(RecordKind::Declare, declare.encode())];
        for slices in parts {
            let import = Import { slices, ..std::mem::take(&mut first) };
            rest.push((RecordKind::Import, import.encode()));
        }
        rest.append(&mut conversations.records);
        self.begin(types, options.session, None, rest, &large)
    }

    /// Replaces large items by references to objects, and returns the items.
    fn import_large(&self, recorded: &mut [(u32, RecordedItems)]) -> Vec<Vec<u8>> {
        let mut large = Vec::new();
        for (bytes, _) in recorded.iter_mut().flat_map(|(_, items)| items) {
            if bytes.len() as u64 > self.inner.options.object_bytes_min {
                let reference = foldlog_codec::body::ObjectId::from_content(bytes).reference();
                large.push(std::mem::replace(bytes, reference));
            }
        }
        large
    }
}

/// Maximum bytes of the items in one record of an import. It is far below the limit of a record in
/// bytes. In values it is just below the limit, even if each byte is a value.
const IMPORT_BYTES: usize = 4_000_000;

/// Maximum bytes of an item's overhead in a record.
const ITEM_REST_BYTES: usize = 12;

/// Divides the items of all slices, in order, into parts that each fit into a record. There is at
/// least one part.
fn parts(recorded: &[(u32, RecordedItems)]) -> Vec<Vec<ImportedSlice<'_>>> {
    let (mut parts, mut part, mut bytes) = (Vec::new(), Vec::new(), 0);
    for (slice, items) in recorded {
        let mut imported = ImportedSlice { slice: *slice, items: Vec::new() };
        for (item, version) in items {
            let len = item.len() + ITEM_REST_BYTES;
            if bytes > 0 && bytes + len > IMPORT_BYTES {
                let rest = ImportedSlice { slice: *slice, items: Vec::new() };
                part.push(std::mem::replace(&mut imported, rest));
                parts.push(std::mem::take(&mut part));
                bytes = 0;
            }
            bytes += len;
            imported.items.push((Payload::new(item), *version));
        }
        part.push(imported);
    }
    parts.push(part);
    parts
}

/// Returns whether an import converts a slice to records: conversations, or the states of adapters.
fn is_conversation(slice: &ExportedSlice) -> bool {
    slice.slice_type == CONVERSATION || slice.slice_type == ADAPTER_STATES
}

/// Name of the slice that receives another program's slice named `tool_invoked`.
const FOREIGN_CALLS: &str = "tool_invoked.imported";

/// Renames the export's slice `tool_invoked`, if its items are not the engine's own.
fn with_foreign_calls_renamed(export: &Export, types: &SessionTypes) -> Result<Option<Export>> {
    let is_foreign = |slice: &&ExportedSlice| {
        slice.slice_type == ToolInvocations::NAME && import_items(types, slice, export.is_exact()).is_err()
    };
    if !export.slices.iter().any(|slice| is_foreign(&slice)) {
        return Ok(None);
    }
    let mut renamed = export.clone();
    for slice in &mut renamed.slices {
        if slice.slice_type == FOREIGN_CALLS {
            return Err(Error::Export(format!(
                "slice `{FOREIGN_CALLS}` already exists, and the calls of another program would be imported into it"
            )));
        }
        if slice.slice_type == ToolInvocations::NAME {
            FOREIGN_CALLS.clone_into(&mut slice.slice_type);
        }
    }
    let policy = renamed.policies.remove(ToolInvocations::NAME);
    let policy = policy.unwrap_or_else(|| default_policy(ToolInvocations::NAME).name().to_owned());
    renamed.policies.insert(FOREIGN_CALLS.to_owned(), policy);
    Ok(Some(renamed))
}

fn unfit(slice: &ExportedSlice, place: usize, error: Error) -> Error {
    match error {
        Error::Decode { reason, .. } => {
            Error::Export(format!("item {place} of slice `{}`: {reason}", slice.slice_type))
        }
        error => error,
    }
}

/// Encodes the items of a slice. Items of a declared slice go through the host's type, so that the
/// host itself would have written the same bytes. `exact` tells whether the items are in their
/// recorded form, and not the JSON of another program.
fn import_items(types: &SessionTypes, slice: &ExportedSlice, exact: bool) -> Result<RecordedItems> {
    let known = types.slice(&slice.slice_type);
    let version_at = |place: usize| slice.item_versions.get(place).copied().unwrap_or(1);
    slice
        .items
        .iter()
        .enumerate()
        .map(|(place, item)| {
            let (bytes, version) = (item.encode(), version_at(place));
            let Some(known) = known else {
                check_payload(&slice.slice_type, &bytes)?;
                return Ok((bytes, version));
            };
            // An item of an older version stays in its recorded form; reading it upgrades it.
            if version != known.item_version {
                check_payload(&slice.slice_type, &bytes)?;
                known.decoder.alone(version, SequenceNumber::MIN, RecordedBytes::Elsewhere(&bytes))?;
                return Ok((bytes, version));
            }
            if exact {
                check_payload(&slice.slice_type, &bytes)?;
                let taken = known.up_to_date(version, SequenceNumber::MIN, &bytes);
                return Ok((taken.map_err(|error| unfit(slice, place, error))?, version));
            }
            Ok((known.recode(item)?, version))
        })
        .collect()
}
