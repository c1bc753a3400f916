//! Parts of a state that are read on demand.

use std::any::{Any, TypeId};
use std::collections::BTreeMap;
use std::sync::Arc;

use chrono::{DateTime, Utc};
use foldlog::inspect::LogReader;
use foldlog::{Clock, SequenceNumber};
use parking_lot::Mutex;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::directory::FileTrace;
use super::layout::{self, MANIFEST, META, NEXT};
use super::manifest::TreeManifest;
use super::tree::session_directory;
use super::{AtomicPersistence, SessionIdentity, convert_part};
use crate::{Result, SessionState, StateComponent, TaskTreeState, WorkspaceStores};

/// Counts the requests for a part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AccessPattern {
    /// Number of successful requests.
    pub reads: u64,
    /// Number of times that the part was read from its source.
    pub loads: u64,
    /// Time of the last successful request, by the manager's clock.
    pub last_access: Option<DateTime<Utc>>,
}

/// Reads parts of a session's state on demand, and caches them.
///
/// A part is read once for each requested type, and shared between all callers. It is read again
/// after it was [invalidated](LazyStateManager::invalidate), and, over a tree, after its files
/// changed: each request checks the manifest's file, and reads it if it differs. Over a log, a part
/// is read at one position, where nothing changes.
#[derive(Debug)]
pub struct LazyStateManager {
    clock: Arc<dyn Clock>,
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    source: StateSource,
    loaded: BTreeMap<(StateComponent, TypeId), Arc<dyn Any + Send + Sync>>,
    patterns: BTreeMap<StateComponent, AccessPattern>,
}

#[derive(Debug)]
enum StateSource {
    Tree {
        tree: AtomicPersistence,
        seen: Option<Box<ManifestTrace>>,
    },
    Log {
        log: Arc<LogReader>,
        position: SequenceNumber,
        stores: WorkspaceStores,
        /// The state, after the first request for a part that needs a walk along the log.
        state: Option<Box<SessionState>>,
    },
}

/// Last seen state of a tree's manifest.
#[derive(Debug)]
struct ManifestTrace {
    /// The manifest's file, and that of the next one.
    traces: [Option<FileTrace>; 2],
    manifest: Option<TreeManifest>,
}

impl LazyStateManager {
    /// Reads parts from a tree.
    pub fn over_tree(tree: AtomicPersistence, clock: Arc<dyn Clock>) -> LazyStateManager {
        LazyStateManager::over(StateSource::Tree { tree, seen: None }, clock)
    }

    /// Reads parts from a log at a position.
    pub fn over_log(
        log: Arc<LogReader>,
        position: impl Into<SequenceNumber>,
        stores: WorkspaceStores,
        clock: Arc<dyn Clock>,
    ) -> LazyStateManager {
        let position = position.into();
        LazyStateManager::over(StateSource::Log { log, position, stores, state: None }, clock)
    }

    fn over(source: StateSource, clock: Arc<dyn Clock>) -> LazyStateManager {
        let (loaded, patterns) = (BTreeMap::new(), BTreeMap::new());
        LazyStateManager { clock, inner: Mutex::new(Inner { source, loaded, patterns }) }
    }

    /// Returns a part as a type of its JSON form: [`TaskTreeState`] and so on, or a host's own.
    ///
    /// # Errors
    ///
    /// [`ComponentNotFound`](crate::Error::ComponentNotFound) if the tree has no such part,
    /// [`NotAComponent`](crate::Error::NotAComponent) if the part does not have that form, or the
    /// errors of [`SessionTree::load`](super::SessionTree::load) and of [`SessionState::at`].
    pub fn get<T>(&self, component: StateComponent) -> Result<Arc<T>>
    where
        T: DeserializeOwned + Send + Sync + 'static,
    {
        let mut inner = self.inner.lock();
        inner.look()?;
        let key = (component, TypeId::of::<T>());
        let kept = inner.loaded.get(&key).cloned().and_then(|kept| kept.downcast::<T>().ok());
        let is_loaded = kept.is_none();
        let part = match kept {
            Some(part) => part,
            None => {
                let part = Arc::new(inner.source.load::<T>(component)?);
                inner.loaded.insert(key, Arc::clone(&part) as _);
                part
            }
        };
        let pattern = inner.patterns.entry(component).or_default();
        pattern.reads += 1;
        pattern.loads += u64::from(is_loaded);
        pattern.last_access = DateTime::from_timestamp_micros(self.clock.now_us());
        Ok(part)
    }

    /// Drops a part from the cache, so that the next request reads it. Parts that were already
    /// returned are unchanged.
    pub fn invalidate(&self, component: StateComponent) {
        let mut inner = self.inner.lock();
        inner.forget(|other| other == component);
        if let StateSource::Log { state, .. } = &mut inner.source {
            *state = None;
        }
    }

    /// Changes the position at which parts of a log are read. Over a tree, this drops all parts
    /// from the cache.
    pub fn move_to(&self, position: impl Into<SequenceNumber>) {
        let mut inner = self.inner.lock();
        inner.forget(|_| true);
        if let StateSource::Log { position: read_at, state, .. } = &mut inner.source {
            (*read_at, *state) = (position.into(), None);
        }
    }

    /// Returns the number of requests for a part.
    pub fn access_pattern(&self, component: StateComponent) -> AccessPattern {
        self.inner.lock().patterns.get(&component).copied().unwrap_or_default()
    }
}

impl Inner {
    fn forget(&mut self, which: impl Fn(StateComponent) -> bool) {
        self.loaded.retain(|(component, _), _| !which(*component));
    }

    /// Drops the parts of a tree whose files have changed.
    fn look(&mut self) -> Result<()> {
        let StateSource::Tree { tree, seen } = &mut self.source else { return Ok(()) };
        let traces = traces(tree)?;
        if seen.as_ref().is_some_and(|seen| seen.traces == traces) {
            return Ok(());
        }
        let manifest = tree.tree()?.map(|tree| tree.manifest().clone());
        let before =
            seen.replace(Box::new(ManifestTrace { traces, manifest })).and_then(|seen| seen.manifest);
        let now = seen.as_ref().and_then(|seen| seen.manifest.as_ref());
        let is_other = |component: StateComponent| {
            let directory = layout::directory_of(component);
            let files = |manifest: &TreeManifest| {
                let within = manifest.files.iter().filter(|(path, _)| layout::is_within(path, directory));
                within.map(|(path, file)| (path.clone(), file.content().1.to_owned())).collect::<Vec<_>>()
            };
            before.as_ref().map(files) != now.map(files)
        };
        let changed: Vec<StateComponent> =
            StateComponent::ALL.into_iter().filter(|component| is_other(*component)).collect();
        self.forget(|component| changed.contains(&component));
        Ok(())
    }
}

/// Returns the traces of a tree's manifests.
fn traces(tree: &AtomicPersistence) -> Result<[Option<FileTrace>; 2]> {
    let (to, session) = tree.to();
    let meta = session_directory(to, session)?.map(|directory| directory.child(META)).transpose()?.flatten();
    match meta {
        Some(meta) => Ok([meta.trace(MANIFEST)?, meta.trace(NEXT)?]),
        None => Ok([None, None]),
    }
}

impl StateSource {
    fn load<T: DeserializeOwned + 'static>(&mut self, component: StateComponent) -> Result<T> {
        let (log, position, stores, state) = match self {
            StateSource::Tree { tree, .. } => return tree.load_state(component),
            StateSource::Log { log, position, stores, state } => (log, *position, stores, state),
        };
        if component == StateComponent::TaskTree && state.is_none() {
            return cast_or_convert(component, TaskTreeState::at(log, position)?);
        }
        let read = match state.take() {
            Some(state) => state,
            None => Box::new(SessionState::at(log, position, stores)?),
        };
        let state = state.insert(read);
        match component {
            StateComponent::Session => cast_or_convert(component, SessionIdentity::from_state(state)),
            StateComponent::Configuration => cast_or_convert(component, state.configuration.clone()),
            StateComponent::TaskTree => cast_or_convert(component, state.task_tree.clone()),
            StateComponent::ClaudeContext => cast_or_convert(component, state.claude_context.clone()),
            StateComponent::FileSystem => cast_or_convert(component, state.file_system.clone()),
            StateComponent::ExecutionLogs => cast_or_convert(component, state.execution_logs.clone()),
            StateComponent::ResourceUsage => cast_or_convert(component, state.resource_usage),
        }
    }
}

/// Returns a part directly if it has the requested type, and otherwise converts it through its JSON
/// form.
fn cast_or_convert<P: Serialize + 'static, T: DeserializeOwned + 'static>(
    component: StateComponent,
    part: P,
) -> Result<T> {
    let mut part = Some(part);
    let same = (&mut part as &mut dyn Any).downcast_mut::<Option<T>>().and_then(Option::take);
    same.map_or_else(|| convert_part(component, part), Ok)
}
