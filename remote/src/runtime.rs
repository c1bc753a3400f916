//! Runs requests to a store on a thread of its own. So a host needs no async runtime, and this
//! crate does not use the host's.
//!
//! The thread runs tokio's scheduler for one thread. A caller blocks until its work is done; the
//! work of several callers runs concurrently. The thread ends once the last [`Runtime`] handle is
//! dropped. Work that waits for a store at that time is dropped with it, and operations in progress
//! on a disk are awaited.
//!
//! # Invariants
//!
//! 1. A forked process gets [`Error::NoRuntime`]: it has no copy of the thread, and would wait for
//!    ever.
//! 2. Work that panics ends alone: its caller gets [`Error::NoRuntime`], and the thread continues.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, mpsc as blocking};
use std::thread;

use tokio::runtime::Builder;
use tokio::sync::mpsc;

use crate::error::{Error, Result};

type RuntimeTask = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Provides a handle to a thread that runs futures. A clone refers to the same thread.
#[derive(Clone)]
pub struct Runtime {
    queue: Arc<mpsc::UnboundedSender<RuntimeTask>>,
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

    /// Runs a future on the thread and blocks until it is done. Not for use on an async runtime's
    /// own threads, which would block with it.
    ///
    /// # Errors
    ///
    /// [`Error::NoRuntime`] if the thread has ended, belongs to the process from which this one was
    /// forked, or the future panicked.
    pub fn run<T, F>(&self, future: F) -> Result<T>
    where
        T: Send + 'static,
        F: Future<Output = T> + Send + 'static,
    {
        let (answer, answered) = blocking::sync_channel(1);
        self.spawn(async move {
            // If this fails, the caller no longer waits.
            let _ = answer.send(future.await);
        })?;
        answered.recv().map_err(|_| Error::NoRuntime)
    }
}
