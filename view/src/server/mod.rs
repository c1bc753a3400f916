//! The server of the viewer: the pages of a report, of a store or of one session, live, on the
//! loopback only.
//!
//! A page requests windows of data and never loads a whole session. The engine folds the state at a
//! position, starting from the nearest cached point (`points`). One thread waits for clients; a few
//! others read the logs.
//!
//! | module | contents |
//! |---|---|
//! | `security` | the token, the checks of requests, the headers of every answer |
//! | `connections`, `places` | a bounded number of connections, and the rule that closes one |
//! | `routes` | the paths and their answers |
//! | `files` | the pages' files, as a fixed table |
//! | `query` | parsed queries |
//! | `sessions` | the open sessions, and the rows of a store |
//! | `session` | one open session: the facts about its log, and its growth |
//! | `answers` | the answers to its pages |
//! | `points`, `messages`, `workspaces` | the slices, the conversations and the files at any position |
//!
//! # Invariants
//!
//! 1. Only 127.0.0.1 is bound, and every request without the token is refused.
//! 2. A session is named by its id, and a file of the pages by its name in a table: no input from a
//!    client becomes a path.
//! 3. The server writes nothing into a store and reads no body of a request.
//! 4. The number of connections, of open sessions and of points of each, the length of a request
//!    and that of an answer are bounded. The memory of one session is bounded by its reader's
//!    limit.

mod answers;
mod compare;
mod connections;
mod files;
mod messages;
mod places;
mod points;
mod query;
mod routes;
mod security;
mod session;
mod sessions;
mod workspaces;

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use foldlog::Store;
use tokio::net::TcpListener;
use tokio::sync::watch;
use uuid::Uuid;

use security::{AccessToken, Gate};
use sessions::Sessions;

/// Number of threads that read logs.
const READERS: usize = 4;

/// Time that running reads get to finish when the server shuts down.
const GRACE: Duration = Duration::from_millis(500);

/// Scope of a server.
#[derive(Debug)]
pub enum ServerScope {
    /// All sessions of a store.
    Store(Store),
    /// One session: its id and its directory.
    Session(Uuid, PathBuf),
}

/// A server that runs until it is dropped.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    token: AccessToken,
    stop: watch::Sender<bool>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Starts a server at a port of the loopback; 0 selects a free port.
    ///
    /// # Errors
    ///
    /// The system's error if the port is taken, or if the system provides no randomness or no
    /// thread.
    pub fn start(shown: ServerScope, port: u16, memory_bytes: Option<u64>) -> io::Result<Server> {
        let token = AccessToken::draw()?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(READERS)
            .build()?;
        let listener = runtime.block_on(TcpListener::bind((Ipv4Addr::LOCALHOST, port)))?;
        let address = listener.local_addr()?;
        let gate = Gate::new(token.clone(), address.port());
        let (stop, mut stopped) = watch::channel(false);
        let router = routes::router(gate, Arc::new(Sessions::new(shown, memory_bytes)));
        let thread = thread::Builder::new().name("foldlog-view".to_owned()).spawn(move || {
            runtime.block_on(async {
                tokio::select! {
                    () = connections::serve(listener, router) => {}
                    _ = stopped.changed() => {}
                }
            });
            runtime.shutdown_timeout(GRACE);
        })?;
        Ok(Server { address, token, stop, thread: Some(thread) })
    }

    /// Returns the address that a browser opens, including the token.
    pub fn url(&self) -> String {
        format!("http://{}/{}/", self.address, self.token.as_str())
    }

    /// Returns the port of the loopback at which the server listens.
    pub fn port(&self) -> u16 {
        self.address.port()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.stop.send(true);
        if let Some(thread) = self.thread.take() {
            // A panic of that thread was reported where it happened.
            let _ = thread.join();
        }
    }
}
