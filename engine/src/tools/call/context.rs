use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use foldlog_codec::OperationId;
use serde::Serialize;
use uuid::Uuid;

use super::command::ToolCommand;
use super::running::RunningCall;
use crate::error::{Error, Result};
use crate::generator::Generator;
use crate::options::SessionOptions;
use crate::sabotage::{self, Breakage};
use crate::session::Session;
use crate::store::Store;
use crate::tools::resources::ResourceRegistry;
use crate::types::SessionTypes;

/// What a record is called that names a session begun on a call's behalf, and what the ids of such sessions are of.
const CHILD: &str = "foldlog.child_session";

/// What is recorded of such a session before it is there.
#[derive(Serialize)]
struct Child {
    operation: OperationId,
    ordinal: u32,
    session: String,
}

/// What a tool is given: its own handle on the session, the resources, and what is known of the call. Cheap to clone,
/// and no longer good once the call is over.
#[derive(Clone, Debug)]
pub struct ToolContext {
    pub(in crate::tools) session: Session,
    pub(in crate::tools) running: Arc<RunningCall>,
}

impl ToolContext {
    /// The session, through the call's own handle: what is dispatched here is taken back where the call fails. It is
    /// refused once the call is over, cancelled, or out of time.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// The resources.
    pub fn resources(&self) -> &ResourceRegistry {
        self.running.resources()
    }

    /// The operation's name, which stays the same where an interrupted call is run again: what a tool that is declared
    /// [`Keyed`](foldlog_codec::body::Idempotency::Keyed) finds its earlier work by, with the session's id.
    pub fn operation(&self) -> OperationId {
        self.running.begun.within.operation()
    }

    /// The id of a session that the tool begins on the call's behalf, the how many-th it is: of the session, the
    /// operation and that number, and so the same where an interrupted call is run again.
    pub fn child_session_id(&self, ordinal: u32) -> Uuid {
        self.child(ordinal).0
    }

    /// A session of the same store, begun on the call's behalf under [`child_session_id`](ToolContext::child_session_id),
    /// with a seed that follows from the same and at this session's level; where an earlier run of the call began it, it
    /// is opened as that left it. It has this session and the operation for its [parent](Session::parent), and the log
    /// names it before it is there. It does not go back where the call fails.
    ///
    /// # Errors
    ///
    /// As [`Store::create_with`](crate::Store::create_with) and [`Store::open_session`](crate::Store::open_session), among
    /// them [`Error::Locked`] where a handle of it is still open. Where the call is over, late or cancelled, as
    /// [`Session::dispatch`].
    pub fn child_session(&self, ordinal: u32, types: &SessionTypes) -> Result<Session> {
        let (id, seed) = self.child(ordinal);
        self.session
            .observe(CHILD, &Child { operation: self.operation(), ordinal, session: id.to_string() })?;
        let (store, durability) = (Store::of(self.session.open_store()), self.session.durability());
        let (parent, tags) = (Some(self.session.id()), BTreeMap::new());
        let operation = Some(self.operation());
        let options = SessionOptions {
            id: Some(id),
            seed: Some(seed),
            tags,
            parent,
            operation,
            durability: Some(durability),
        };
        match store.create_with(types, options) {
            Err(Error::SessionExists { .. }) => store.open_session_at(id, types, durability),
            created => created,
        }
    }

    /// The id and the seed of a session that is begun on the call's behalf.
    fn child(&self, ordinal: u32) -> (Uuid, u64) {
        let mut hasher = blake3::Hasher::new();
        hasher.update(CHILD.as_bytes()).update(self.session.id().as_bytes());
        hasher.update(&self.operation().get().to_le_bytes()).update(&ordinal.to_le_bytes());
        if sabotage::is(Breakage::ChildIdDrawn) {
            hasher.update(&Generator::from_entropy().next_u64().to_le_bytes());
        }
        let hash = hasher.finalize();
        let mut id = [0; 16];
        let mut seed = [0; 8];
        let (first, rest) = hash.as_bytes().split_at(id.len());
        id.copy_from_slice(first);
        seed.iter_mut().zip(rest).for_each(|(to, from)| *to = *from);
        (uuid::Builder::from_custom_bytes(id).into_uuid(), u64::from_le_bytes(seed))
    }

    /// The provider's name for the call. It may have been used before for another.
    pub fn call_id(&self) -> Option<&str> {
        self.running.info.call_id.as_deref()
    }

    /// Whether the call was interrupted before and is run again.
    pub fn is_resume(&self) -> bool {
        self.running.info.is_resume()
    }

    /// The moment at which the call's time is over.
    pub fn deadline(&self) -> Option<Instant> {
        self.running.begun.within.until()
    }

    /// Whether the tool is to stop: it was told to, or its time is over.
    pub fn is_cancelled(&self) -> bool {
        self.running.begun.within.is_cancelled()
    }

    /// A program to be run, which does not outlive the call.
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> ToolCommand {
        ToolCommand::new(program.as_ref(), Arc::clone(&self.running))
    }
}
