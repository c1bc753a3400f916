//! Runs what speaks to a store on a thread of its own, so that a host needs no async runtime, and this crate touches
//! none that the host has.
//!
//! The thread runs tokio's scheduler for one thread. A caller blocks until its work is done; several callers' work runs
//! side by side. The thread ends once the last [`Runtime`] that names it is dropped; work that waits for a store then is
//! dropped with it, and what is under way on a disk is waited for.
//!
//! # Invariants
//!
//! 1. A process that was forked gets [`Error::NoRuntime`]: it has no copy of the thread, and would wait for ever.
//! 2. Work that panics ends alone: its caller gets [`Error::NoRuntime`], and the thread goes on.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, mpsc as blocking};
use std::thread;

use tokio::runtime::Builder;
use tokio::sync::mpsc;

use crate::error::{Error, Result};

type RuntimeTask = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Names a thread that runs futures. A clone names the same thread.
#[derive(Clone)]
pub struct Runtime {
    queue: Arc<mpsc::UnboundedSender<RuntimeTask>>,
    /// Process that the thread belongs to.
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
    /// [`Error::NoRuntime`] if the system gives no thread.
    pub fn start() -> Result<Runtime> {
        let (queue, mut work) = mpsc::unbounded_channel::<RuntimeTask>();
        let runtime = Builder::new_current_thread().enable_all().build().map_err(|_| Error::NoRuntime)?;
        let serve = move || {
            runtime.block_on(async {
                while let Some(work) = work.recv().await {
                    tokio::spawn(work);
                }
            });
        };
        thread::Builder::new()
            .name("foldlog-remote".to_owned())
            .spawn(serve)
            .map_err(|_| Error::NoRuntime)?;
        Ok(Runtime { queue: Arc::new(queue), process: std::process::id() })
    }

    /// Runs a future on the thread and returns at once.
    ///
    /// # Errors
    ///
    /// [`Error::NoRuntime`] as [`Runtime::run`].
    pub(crate) fn spawn(&self, future: impl Future<Output = ()> + Send + 'static) -> Result<()> {
        if self.process != std::process::id() {
            return Err(Error::NoRuntime);
        }
        self.queue.send(Box::pin(future)).map_err(|_| Error::NoRuntime)
    }

    /// Runs a future on the thread and blocks until it is done. Not for use on an async runtime's own threads, which
    /// would block with it.
    ///
    /// # Errors
    ///
    /// [`Error::NoRuntime`] if the thread has ended, belongs to the process that this one was forked from, or the future
    /// panicked.
    pub fn run<T, F>(&self, future: F) -> Result<T>
    where
        T: Send + 'static,
        F: Future<Output = T> + Send + 'static,
    {
        let (answer, answered) = blocking::sync_channel(1);
        self.spawn(async move {
            // Nobody waits any more where this fails.
            let _ = answer.send(future.await);
        })?;
        answered.recv().map_err(|_| Error::NoRuntime)
    }
}
