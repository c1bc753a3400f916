//! Runs requests to a store on the calling thread, while a thread of the crate's own waits for the
//! network and the timers. So a host needs no async runtime, and this crate does not use the
//! host's.
//!
//! The thread runs tokio's scheduler for one thread. A caller blocks until its work is done; the
//! work of several callers runs concurrently. The thread ends once the last [`Runtime`] handle is
//! dropped. Spawned work that waits for a store at that time is dropped with it, and operations in
//! progress on a disk are awaited.
//!
//! # Invariants
//!
//! 1. A forked process gets [`Error::NoRuntime`]: it has no copy of the thread, and would wait for
//!    ever.
//! 2. Work that panics ends alone: its caller gets [`Error::NoRuntime`], and the thread continues.

use std::fmt;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread;

use futures_lite::future;
use tokio::runtime::{Builder, Handle};
use tokio::sync::{mpsc, oneshot};
use tokio::task::{self, JoinHandle};

use crate::error::{Error, Result};

/// Number of batches that are read ahead of their consumer.
const AHEAD: usize = 2;

/// Provides a handle to a thread that drives futures. A clone refers to the same thread.
#[derive(Clone)]
pub struct Runtime {
    handle: Handle,
    /// The thread ends once this is dropped.
    _alive: Arc<oneshot::Sender<()>>,
    /// Process of the thread.
    process: u32,
}

impl fmt::Debug for Runtime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Runtime").finish_non_exhaustive()
    }
}

impl Runtime {
    /// Starts the thread.
    ///
    /// # Errors
    ///
    /// [`Error::NoRuntime`] if the system cannot start a thread.
    pub fn start() -> Result<Runtime> {
        let runtime = Builder::new_current_thread().enable_all().build().map_err(|_| Error::NoRuntime)?;
        let (handle, (alive, ended)) = (runtime.handle().clone(), oneshot::channel());
        thread::Builder::new()
            .name("foldlog-remote".to_owned())
            .spawn(move || {
                let _ = runtime.block_on(ended);
            })
            .map_err(|_| Error::NoRuntime)?;
        Ok(Runtime { handle, _alive: Arc::new(alive), process: std::process::id() })
    }

    /// Returns the scheduler, unless this process was forked from the one with the thread.
    fn handle(&self) -> Result<&Handle> {
        if self.process == std::process::id() { Ok(&self.handle) } else { Err(Error::NoRuntime) }
    }

    /// Runs a future on the crate's thread and returns at once.
    pub(crate) fn spawn<T: Send + 'static>(
        &self,
        future: impl Future<Output = T> + Send + 'static,
    ) -> Result<JoinHandle<T>> {
        Ok(self.handle()?.spawn(future))
    }

    /// Runs a future on the calling thread and blocks until it is done. Not for use on an async
    /// runtime's own threads, which would block with it.
    ///
    /// # Errors
    ///
    /// [`Error::NoRuntime`] if the crate's thread belongs to the process from which this one was
    /// forked, or the future panicked.
    pub fn run<T>(&self, future: impl Future<Output = T>) -> Result<T> {
        let _context = self.handle()?.enter();
        // A caller within a task of another runtime would otherwise exhaust that task's budget.
        let run = || future::block_on(task::unconstrained(future));
        catch_unwind(AssertUnwindSafe(run)).map_err(|_| Error::NoRuntime)
    }

    /// Runs `read` on the crate's thread, and passes the batches that it sends to `visit`, on the
    /// calling thread. Returns the result of `read` after the last batch.
    pub(crate) fn read_ahead<T, R: Send + 'static, F>(
        &self,
        read: impl FnOnce(mpsc::Sender<T>) -> F,
        mut visit: impl FnMut(T),
    ) -> Result<R>
    where
        F: Future<Output = R> + Send + 'static,
    {
        let (send, mut batches) = mpsc::channel(AHEAD);
        let reading = self.spawn(read(send))?;
        while let Some(batch) = self.run(batches.recv())? {
            visit(batch);
        }
        self.run(reading)?.map_err(|_| Error::NoRuntime)
    }
}
