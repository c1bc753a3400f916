//! Reports the child sessions of an operation: where each one stopped, and the possible decisions.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use foldlog_codec::body::{Idempotency, Parent};
use foldlog_codec::{OperationId, SequenceNumber};
use parking_lot::Mutex;
use uuid::Uuid;

use crate::conversation::Resume;
use crate::error::{Error, Result};
use crate::operation::{CHILD_SESSION, ChildAnnounced, OpenOperation, PutBack, UnsettledOperation};
use crate::session::{Session, SessionCalls};
use crate::store::Store;

/// Describes a child session of an operation.
#[derive(Clone, Debug)]
pub struct ChildReport {
    /// Operation for which the child works.
    pub operation: OperationId,
    /// Number that the tool assigned to the child.
    pub ordinal: u32,
    /// Id of the child.
    pub session: Uuid,
    /// Point at which the child stopped.
    pub stop: ChildStop,
}

/// Describes the point at which a child session stopped.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum ChildStop {
    /// The child was announced and has no record, or it was deleted. The tool creates it when it
    /// runs again.
    NotBegun,
    /// The child's log cannot be read, or the session of that id is no child of the operation. The
    /// error contains the reason.
    Unreadable(Arc<Error>),
    /// The child's log ends at a position.
    At {
        /// Sequence number of the child's last record.
        position: SequenceNumber,
        /// Calls that have started and not ended. A recovery of the parent ends them, unless
        /// another process has the child open.
        open: Vec<OpenOperation>,
        /// Calls that were interrupted, and have neither run again nor been settled since.
        unsettled: Vec<UnsettledOperation>,
        /// Points at which the child's conversations continue. Empty while calls are open.
        conversations: Vec<Resume>,
    },
}

/// Names a possible decision about a child session of an interrupted operation.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ChildChoice {
    /// Run the operation again, by a recovery, after [settling](crate::SessionCalls::settle) it
    /// with [`RunAgain`](crate::Settlement::run_again()) if its tool is manual. The child continues
    /// where it stopped.
    Resume,
    /// [Settle](Store::settle) these operations of the child, and then choose again.
    Settle(Vec<OperationId>),
    /// [Settle](crate::SessionCalls::settle) the operation as
    /// [`Failed`](crate::Settlement::failed()). The child does not continue, and its committed
    /// operations count as abandoned.
    Abandon,
}

impl ChildReport {
    /// Returns the possible decisions if the operation was interrupted, best first.
    pub fn choices(&self) -> Vec<ChildChoice> {
        match &self.stop {
            ChildStop::Unreadable(_) => vec![ChildChoice::Abandon],
            ChildStop::NotBegun => vec![ChildChoice::Resume, ChildChoice::Abandon],
            ChildStop::At { unsettled, .. } => {
                let waits =
                    |one: &&UnsettledOperation| one.idempotency == Idempotency::Manual && !one.run_again;
                let waiting: Vec<_> = unsettled.iter().filter(waits).map(|one| one.operation).collect();
                let first = match waiting.is_empty() {
                    true => ChildChoice::Resume,
                    false => ChildChoice::Settle(waiting),
                };
                vec![first, ChildChoice::Abandon]
            }
        }
    }
}

/// Ids of the child sessions that a log announces, by operation and number.
#[derive(Default)]
pub(super) struct AnnouncedChildren(BTreeMap<OperationId, BTreeMap<u32, Uuid>>);

impl AnnouncedChildren {
    /// Reads the log once, from the first of these operations on.
    pub(super) fn read(
        session: &Session,
        operations: impl IntoIterator<Item = OperationId>,
    ) -> Result<AnnouncedChildren> {
        let mut announced = AnnouncedChildren::default();
        let Some(first) = operations.into_iter().min() else { return Ok(announced) };
        for child in session.calls().observed_within::<ChildAnnounced>(
            CHILD_SESSION,
            first.sequence(),
            SequenceNumber::MAX,
        )? {
            if let Some(session) = child.session() {
                announced.0.entry(child.operation).or_default().insert(child.ordinal, session);
            }
        }
        Ok(announced)
    }

    pub(super) fn take(&mut self, operation: OperationId) -> BTreeMap<u32, Uuid> {
        self.0.remove(&operation).unwrap_or_default()
    }

    /// Takes the children of an operation of `session`, and reports where each stopped.
    pub(super) fn report(&mut self, session: &Session, operation: OperationId) -> Vec<ChildReport> {
        let store = session.store();
        let announced = self.take(operation).into_iter();
        let report = announced.map(|(ordinal, child)| {
            let stop = stop(&store, session.id(), operation, child).unwrap_or_else(|error| match error {
                Error::NoSuchSession { .. } | Error::NotASession { .. } => ChildStop::NotBegun,
                error => ChildStop::Unreadable(Arc::new(error)),
            });
            ChildReport { operation, ordinal, session: child, stop }
        });
        report.collect()
    }
}

/// Call for which a child session works, and the child's announcement.
pub(super) struct ParentCall {
    /// Handle of the call, which does not keep the parent session open.
    pub(super) call: Session,
    pub(super) child: ChildAnnounced,
    pub(super) children: Arc<Mutex<Children>>,
}

impl ParentCall {
    /// Announces a stint of this child in the parent's log, unless one is active. A re-run of the
    /// call derives from these records which captures contain whose changes.
    pub(super) fn announce_work(&self) -> Result<()> {
        let mut children = self.children.lock();
        let ordinal = self.child.ordinal;
        if children.worked == Some(ordinal) {
            return Ok(());
        }
        let stint = children.stints + 1;
        let mut holds = children.holds.clone();
        holds.insert(ordinal, stint);
        self.call.calls().announce_child(&self.child.of_stint(&holds))?;
        (children.stints, children.holds, children.worked) = (stint, holds, Some(ordinal));
        Ok(())
    }
}

/// Child sessions that a run of a call has opened.
#[derive(Default)]
pub(super) struct Children {
    /// Numbers of the children that were created or opened.
    pub(super) begun: BTreeSet<u32>,
    /// Handles of the children that work on the call's resources, by number. They do not keep the
    /// children open.
    pub(super) working: BTreeMap<u32, Session>,
    /// Number of the child that last worked on the resources in this run of the call.
    pub(super) worked: Option<u32>,
    /// For each child with a stint before this run: the stints that the resources contained after
    /// its last one. `None` until it is read.
    pub(super) before: Option<BTreeMap<u32, BTreeMap<u32, u64>>>,
    /// Number of stints in all runs so far.
    pub(super) stints: u64,
    /// Last stint of each child that the resources contain.
    pub(super) holds: BTreeMap<u32, u64>,
    /// Outcomes of the restores for these children.
    pub(super) put_back: PutBack,
    /// Reason why the call cannot commit: the resources could not be restored to their state after
    /// a child.
    pub(super) broken: Option<String>,
}

impl Children {
    /// Returns the reason why the call that opened these children cannot commit; `None` if it can.
    pub(super) fn refusal(&self) -> Option<String> {
        let left_open = self.working.values().find_map(|child| {
            let OpenOperation { operation, tool, .. } = child.calls().changing_operation()?;
            let (child, tool) = (child.id(), foldlog_codec::escape::text(&tool).into_owned());
            Some(format!("operation {operation} (`{tool}`) of its child session {child} has not ended"))
        });
        self.broken.clone().or(left_open)
    }
}

/// Returns whether this operation of `session` created `child`.
pub(super) fn is_child_of(child: &Session, session: Uuid, operation: OperationId) -> bool {
    child.parent() == Some(Parent::Child { session, operation: Some(operation) })
}

impl SessionCalls<'_> {
    /// Reports the child sessions of an operation, in the order of their numbers. Takes no lock, so
    /// that a process with an open child is not disturbed.
    ///
    /// Hosts use it to decide about an [unsettled](crate::SessionCalls::unsettled_operations)
    /// operation. After a recovery,
    /// [`RecoveredOperation::children`](crate::tools::RecoveredOperation::children) contains the
    /// same reports.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if the log of this session cannot be read, [`Error::Object`] if an object is
    /// missing or damaged.
    pub fn children_of(&self, operation: impl Into<OperationId>) -> Result<Vec<ChildReport>> {
        let operation = operation.into();
        Ok(AnnouncedChildren::read(self.session, [operation])?.report(self.session, operation))
    }
}

fn stop(store: &Store, parent: Uuid, operation: OperationId, session: Uuid) -> Result<ChildStop> {
    let child = store.open_untyped(session)?;
    if !is_child_of(&child, parent, operation) {
        return Err(Error::WrongChild { session, parent, operation });
    }
    let open = child.calls().open_operations();
    let conversations = match open.is_empty() {
        true => child
            .conversation()
            .evaluations()
            .iter()
            .map(|id| child.conversation().resume(Some(id)))
            .collect::<Result<_>>()?,
        false => Vec::new(),
    };
    let (position, unsettled) =
        (child.log().position().unwrap_or_default(), child.calls().unsettled_operations());
    Ok(ChildStop::At { position, open, unsettled, conversations })
}
