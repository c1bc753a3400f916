//! The handle of a store, and the state that the sessions of one open store share. The handle is
//! here because each session returns it; `store` contains its methods.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use uuid::Uuid;

use super::{Handles, Session, SessionInner};
use crate::background::Background;
use crate::generator::Generator;
use crate::log::writer::LogEnvironment;
use crate::options::StoreOptions;

/// Manages a directory of sessions. Cloning is cheap. Dropping it closes no session.
#[derive(Clone, Debug)]
pub struct Store {
    pub(crate) inner: Arc<OpenStore>,
}

/// An open store, as its sessions see it.
#[derive(Debug)]
pub(crate) struct OpenStore {
    pub(crate) root: PathBuf,
    pub(crate) options: StoreOptions,
    pub(crate) background: Background,
    pub(crate) writers: Writers,
    pub(crate) generator: Mutex<Generator>,
}

impl OpenStore {
    /// Returns the environment of this store's logs: storage, access, sizes.
    pub(crate) fn log_environment(&self) -> LogEnvironment {
        LogEnvironment {
            storage: Arc::clone(&self.options.storage),
            sizes: self.options.segments,
            background: self.background.clone(),
        }
    }
}

/// Sessions that are open for writing in this store.
#[derive(Default)]
pub(crate) struct Writers {
    sessions: Mutex<BTreeMap<Uuid, WeakSession>>,
}

/// Finds a session's writer and its handles, without keeping it open.
struct WeakSession {
    inner: Weak<SessionInner>,
    handles: Weak<Handles>,
}

impl std::fmt::Debug for Writers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.sessions.lock().keys()).finish()
    }
}

impl Writers {
    /// Registers a session's writer by its first handle, without keeping it open.
    pub(super) fn register(&self, first: &Session) {
        let handles = first._handles.as_ref().map(Arc::downgrade).unwrap_or_default();
        let writer = WeakSession { inner: Arc::downgrade(&first.inner), handles };
        self.sessions.lock().insert(first.inner.id, writer);
    }

    /// Returns another handle of a session that is open for writing in this store.
    pub(crate) fn handle(&self, session: Uuid) -> Option<Session> {
        let handles = self.sessions.lock().get(&session)?.handles.upgrade()?;
        let session = Session::with(handles);
        let is_closed = session.inner.state.lock().closed;
        (!is_closed).then_some(session)
    }

    /// Returns the session's writer, if it is open in this store.
    pub(crate) fn get(&self, session: Uuid) -> Option<Arc<SessionInner>> {
        self.sessions.lock().get(&session)?.inner.upgrade()
    }

    /// Removes a session that has closed.
    pub(crate) fn forget(&self, session: Uuid) {
        self.sessions.lock().remove(&session);
    }
}
