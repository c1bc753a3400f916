//! Async variants of a run's own calls (feature `async`): composite snapshots, restores, rewinds
//! and their previews.
//!
//! # Invariants
//!
//! 1. Waiting for calls of the session, or for another session's work on a resource, occupies no
//!    thread. The work itself, including captures and restores, runs on a thread of the pool, as an
//!    attempt that does not wait.
//! 2. A dropped future starts no work. An attempt that has started before continues to its end.

use std::future::Future;
use std::panic::Location;

use foldlog_codec::SequenceNumber;

use super::call::RestoreScope;
use super::composite::{CompositeSnapshot, SnapshotMetadata};
use super::execution::ExecutionState;
use super::restore::RestoreWait;
use super::rewind::{RewindOptions, RewindPreview, RewindReport};
use crate::error::Result;
use crate::session::RollbackReport;

impl ExecutionState {
    /// Captures the session and every resource like [`snapshot`](ExecutionState::snapshot), for
    /// async hosts. Waiting occupies no thread; a thread of a pool captures the resources. If the
    /// future is dropped, a snapshot may still be created.
    #[track_caller]
    pub fn snapshot_async(
        &self,
        tag: Option<&str>,
    ) -> impl Future<Output = Result<CompositeSnapshot>> + Send + use<> {
        let (tag, at) = (tag.map(str::to_owned), Location::caller());
        self.clone().when_free(move |state, waiting| {
            (waiting.is_wanted)()?;
            let metadata = SnapshotMetadata { tag, ..SnapshotMetadata::default() };
            state.snapshot_within(metadata, &waiting.patience, at)
        })
    }

    /// Restores the session and every resource of a snapshot like
    /// [`restore`](ExecutionState::restore), for async hosts. Waiting occupies no thread; a thread
    /// of a pool restores the resources.
    ///
    /// If the future is dropped while it waits, no restore takes place. If it is dropped later, the
    /// restore continues to its end, and a later call waits for that.
    ///
    /// ```
    /// # use foldlog::{ExecutionState, ResourceRegistry, SessionTypes, Store};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let directory = tempfile::tempdir()?;
    /// # let session = Store::open(directory.path())?.create(&SessionTypes::builder().build()?)?;
    /// let state = ExecutionState::new(session.clone(), ResourceRegistry::builder().build()?);
    /// # futures_lite::future::block_on(async {
    /// let before = state.snapshot_async(Some("before")).await?;
    /// session.dynamic().dispatch_async("noted", "a mistake").await?;
    /// state.restore_async(&before).await?;
    /// assert!(session.dynamic().view("noted")?.is_empty());
    /// # Ok(())
    /// # })
    /// # }
    /// ```
    pub fn restore_async(
        &self,
        snapshot: &CompositeSnapshot,
    ) -> impl Future<Output = Result<RollbackReport>> + Send + use<> {
        let snapshot = snapshot.clone();
        self.clone().when_free(move |state, waiting| state.go_back(&snapshot, RestoreScope::All, waiting))
    }

    /// Rolls STATE and resources back to their state before a tool call like
    /// [`rollback_to_tool`](ExecutionState::rollback_to_tool), for async hosts. Waiting and
    /// dropping work as for [`restore_async`](ExecutionState::restore_async).
    pub fn rollback_to_tool_async(
        &self,
        call_id: &str,
    ) -> impl Future<Output = Result<RollbackReport>> + Send + use<> {
        let call_id = call_id.to_owned();
        self.clone().when_free(move |state, waiting| state.roll_back_tool(&call_id, waiting))
    }

    /// Rewinds session and resources to a position like [`rewind`](ExecutionState::rewind), for
    /// async hosts. Waiting and dropping work as for
    /// [`restore_async`](ExecutionState::restore_async).
    pub fn rewind_async<P: Into<SequenceNumber>>(
        &self,
        to: P,
        options: &RewindOptions,
    ) -> impl Future<Output = Result<RewindReport>> + Send + use<P> {
        let (to, options) = (to.into(), options.clone());
        self.clone().when_free(move |state, waiting| state.rewind_waiting(Some(to), &options, waiting))
    }

    /// Undoes the last rewind like [`undo_rewind`](ExecutionState::undo_rewind), for async hosts.
    /// Waiting and dropping work as for [`restore_async`](ExecutionState::restore_async).
    pub fn undo_rewind_async(
        &self,
        options: &RewindOptions,
    ) -> impl Future<Output = Result<RewindReport>> + Send + use<> {
        let options = options.clone();
        self.clone().when_free(move |state, waiting| state.rewind_waiting(None, &options, waiting))
    }

    /// Describes the effect of a rewind like [`preview_rewind`](ExecutionState::preview_rewind),
    /// for async hosts. Waiting occupies no thread.
    #[track_caller]
    pub fn preview_rewind_async<P: Into<SequenceNumber>>(
        &self,
        to: P,
        options: &RewindOptions,
    ) -> impl Future<Output = Result<RewindPreview>> + Send + use<P> {
        let (to, options, at) = (to.into(), options.clone(), Location::caller());
        self.clone().when_free(move |state, waiting| state.preview(Some(to), &options, &waiting.patience, at))
    }

    /// Describes the effect of an undo like [`preview_undo`](ExecutionState::preview_undo), for
    /// async hosts. Waiting occupies no thread.
    #[track_caller]
    pub fn preview_undo_async(
        &self,
        options: &RewindOptions,
    ) -> impl Future<Output = Result<RewindPreview>> + Send + use<> {
        let (options, at) = (options.clone(), Location::caller());
        self.clone().when_free(move |state, waiting| state.preview(None, &options, &waiting.patience, at))
    }

    /// Repeats attempts that do not wait, each on a thread of the pool, until one is not blocked.
    async fn when_free<T: Send + 'static>(
        self,
        attempt: impl FnOnce(&ExecutionState, &RestoreWait<'_>) -> Result<T> + Clone + Send + 'static,
    ) -> Result<T> {
        let patience = self.session().patience(self.until(None), None).holding_no_thread();
        let state = self.clone();
        let attempt = move |waiting: &RestoreWait<'_>| attempt(&state, waiting);
        self.retry_until_free(false, &patience, true, attempt).await
    }
}
