//! Closes the connection of a request that is cancelled while its thread waits for the provider.

use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::{io, thread};

use ureq::Agent;

use super::POLL;
use crate::provider::CancelToken;

/// Watches a token during its lifetime, on its own thread.
pub(super) struct Watch {
    done: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    /// Starts the watch. When the token is cancelled, the agent's connections are shut down.
    pub(super) fn start(agent: Agent, cancel: CancelToken) -> io::Result<Watch> {
        let (done, ended) = mpsc::channel::<()>();
        let thread = thread::Builder::new().name("foldlog-cancel".to_owned()).spawn(move || {
            while ended.recv_timeout(POLL) == Err(RecvTimeoutError::Timeout) {
                if cancel.is_cancelled() {
                    return agent.shutdown();
                }
            }
        })?;
        Ok(Watch { done: Some(done), thread: Some(thread) })
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        drop(self.done.take());
        if let Some(thread) = self.thread.take() {
            // The thread runs no code that panics; if it did, the request would still be over.
            let _ = thread.join();
        }
    }
}
