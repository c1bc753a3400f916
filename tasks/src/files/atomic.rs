//! Persists parts of a state one by one.

use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;
use uuid::Uuid;

use super::contents::{ChangeItem, SessionFile};
use super::layout;
use super::render::{self, FileSink, MessageIndex};
use super::tree::{SessionTree, TreeLimits};
use super::tree_writer::{ExportReport, TreeWriter};
use crate::{Error, FileSystemState, Result, StateComponent, StateCompression};

/// Persists parts of a session's state in its tree, each in one atomic step. A reader finds the
/// part before or after the change, even if the writer is killed. The rules of a [tree](super)
/// apply.
#[derive(Clone, Debug)]
pub struct AtomicPersistence {
    to: PathBuf,
    session: Uuid,
    compression: StateCompression,
    limits: TreeLimits,
}

impl AtomicPersistence {
    /// Persists into `.aca/sessions/SESSION/` of the existing directory `to`. Nothing is written
    /// yet.
    pub fn new(to: impl Into<PathBuf>, session: Uuid, compression: StateCompression) -> AtomicPersistence {
        AtomicPersistence { to: to.into(), session, compression, limits: TreeLimits::default() }
    }

    /// Sets the maximum length of the files that are read.
    #[must_use]
    pub fn limits(self, limits: TreeLimits) -> AtomicPersistence {
        AtomicPersistence { limits, ..self }
    }

    pub(super) fn to(&self) -> (&Path, Uuid) {
        (&self.to, self.session)
    }

    /// Opens the tree; returns `None` if there is none yet.
    pub fn tree(&self) -> Result<Option<SessionTree>> {
        SessionTree::of_session(&self.to, self.session, self.limits)
    }

    /// Replaces a part of the state. `data` has the JSON form of that part: of
    /// [`SessionIdentity`](super::SessionIdentity), [`TaskTreeState`](crate::TaskTreeState) and so
    /// on. Blocks while another process or thread reads or writes this tree. The part is durable
    /// once this returns.
    ///
    /// # Errors
    ///
    /// [`Error::NotAComponent`] if the value has another form or further fields, [`Error::Damaged`]
    /// if the manifest or a required file is damaged, or the errors of
    /// [`export_tree`](super::export_tree).
    pub fn persist_state<T: Serialize + ?Sized>(
        &self,
        component: StateComponent,
        data: &T,
    ) -> Result<ExportReport> {
        let value = serde_json::to_value(data);
        let value = value.map_err(|error| Error::NotAComponent { component, reason: error.to_string() })?;
        let mut writer = TreeWriter::open(&self.to, self.session, self.compression, None)?;
        let before = writer.before()?.cloned();
        let tree = writer.tree(self.limits)?;
        let mut files: Vec<(String, Vec<u8>)> = Vec::new();
        let sink = &mut |path: &str, content: &[u8]| {
            files.push((path.to_owned(), content.to_vec()));
            Ok(())
        };
        let replaced = self.render(component, value, tree.as_ref(), sink)?;
        if let Some(before) = &before {
            let after = &mut writer.after;
            // The parts are no longer of the same position, so the tree has none.
            (after.updates, after.checkpoints) = (before.updates, before.checkpoints);
            after.history.clone_from(&before.history);
            before.files.keys().filter(|path| !replaced(path)).for_each(|path| writer.keep(path));
        }
        for (path, content) in files {
            writer.put(&path, &content)?;
        }
        writer.commit().map(|written| written.report)
    }

    /// Renders the files of a part; returns a predicate for the files of the tree that they
    /// replace.
    fn render(
        &self,
        component: StateComponent,
        value: serde_json::Value,
        tree: Option<&SessionTree>,
        sink: FileSink<'_>,
    ) -> Result<fn(&str) -> bool> {
        match component {
            StateComponent::Session | StateComponent::Configuration | StateComponent::ResourceUsage => {
                let mut file = tree.map_or_else(|| Ok(SessionFile::default()), SessionTree::session_file)?;
                match component {
                    StateComponent::Session => file.session = Some(part(component, value)?),
                    StateComponent::Configuration => file.configuration = Some(part(component, value)?),
                    _ => file.resource_usage = Some(part(component, value)?),
                }
                render::session(&file, sink)?;
                Ok(|path| layout::is_within(path, layout::META))
            }
            StateComponent::TaskTree => {
                render::task_tree(&part(component, value)?, sink)?;
                Ok(|path| layout::is_within(path, "state"))
            }
            StateComponent::ClaudeContext => {
                let context = part(component, value)?;
                render::claude_context(&context, sink)?;
                // Updates omit messages that the conversation contains, and these messages may have
                // changed.
                if let Some(tree) = tree.filter(|tree| tree.has("filesystem")) {
                    let untold = tree.parts().changes()?.into_iter().filter(|one| one.update.is_none());
                    let updates = match tree.has("claude") {
                        true => tree
                            .parts()
                            .updates(&MessageIndex::from_context(&tree.parts().claude_context()?))?,
                        false => tree.parts().updates(&MessageIndex::default())?,
                    };
                    let messages = MessageIndex::from_context(&context);
                    let changes = updates.iter().map(|update| messages.left_out_of(update));
                    let changes: Vec<ChangeItem<'_>> = untold.chain(changes).collect();
                    render::put_changes(&changes, sink)?;
                }
                Ok(|path| {
                    layout::is_within(path, "claude") || layout::number_of(path, layout::CHANGES).is_some()
                })
            }
            StateComponent::FileSystem => {
                let state: FileSystemState = part(component, value)?;
                let known = tree.filter(|tree| tree.has("filesystem"));
                let known = known.map_or_else(|| Ok(Vec::new()), |tree| tree.parts().changes())?;
                render::file_system(&state, &changes_of(&state, known), sink)?;
                Ok(|path| layout::is_within(path, "filesystem"))
            }
            StateComponent::ExecutionLogs => {
                render::execution_logs(&part(component, value)?, sink)?;
                Ok(|path| layout::is_within(path, "logs"))
            }
        }
    }

    /// Reads a part of the state, as [`SessionTree::load`] does.
    ///
    /// # Errors
    ///
    /// [`Error::ComponentNotFound`] if the part was never persisted, or the errors of
    /// [`SessionTree::load`].
    pub fn load_state<T: DeserializeOwned>(&self, component: StateComponent) -> Result<T> {
        self.tree()?.ok_or(Error::ComponentNotFound(component))?.load(component)
    }
}

/// Brings the changes of a tree up to date with the modifications of a state. Updates without a
/// modification are unchanged.
fn changes_of<'a>(state: &'a FileSystemState, known: Vec<ChangeItem<'a>>) -> Vec<ChangeItem<'a>> {
    if known.iter().filter_map(ChangeItem::file_modification).eq(&state.file_modifications) {
        return known;
    }
    let others = known.into_iter().filter(|change| change.file_modification().is_none());
    others.chain(state.file_modifications.iter().map(ChangeItem::of_modification)).collect()
}

/// Parses a part of a state from a value; unknown fields are an error.
fn part<P: DeserializeOwned>(component: StateComponent, value: serde_json::Value) -> Result<P> {
    let mut unknown = Vec::new();
    let part = serde_ignored::deserialize(value, |path| unknown.push(path.to_string()));
    let refused = |reason| Error::NotAComponent { component, reason };
    match (part, unknown.as_slice()) {
        (Err(error), _) => Err(refused(error.to_string())),
        (Ok(part), []) => Ok(part),
        (Ok(_), unknown) => Err(refused(format!("unknown fields: {}", unknown.join(", ")))),
    }
}
