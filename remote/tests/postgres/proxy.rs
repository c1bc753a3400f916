//! A proxy to a server that breaks connections on demand.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;

use crate::server::Server;

/// Direction in which bytes are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    ToServer,
    FromServer,
}

/// Forwards bytes between clients and a server.
#[derive(Debug)]
pub(crate) struct Proxy {
    directory: tempfile::TempDir,
    state: Arc<State>,
    port: u16,
}

#[derive(Debug)]
struct State {
    server: PathBuf,
    /// Number of bytes that may still pass before connections are cut, for each direction.
    left: [AtomicI64; 2],
    stays_down: AtomicBool,
    is_down: AtomicBool,
    was_cut: AtomicBool,
    /// Admits one connection at a time.
    gate: Mutex<()>,
    /// Current connections, both ends.
    open: Mutex<Vec<UnixStream>>,
}

/// More bytes than any test sends.
const ENDLESS: i64 = i64::MAX / 2;

impl Proxy {
    pub(crate) fn new(server: &Server) -> Proxy {
        let directory = tempfile::Builder::new().prefix("foldlog-px").tempdir_in("/tmp").unwrap();
        let listener =
            UnixListener::bind(directory.path().join(format!(".s.PGSQL.{}", server.port()))).unwrap();
        let left = [AtomicI64::new(ENDLESS), AtomicI64::new(ENDLESS)];
        let state = State {
            server: server.socket(),
            left,
            stays_down: AtomicBool::new(false),
            is_down: AtomicBool::new(false),
            was_cut: AtomicBool::new(false),
            gate: Mutex::default(),
            open: Mutex::default(),
        };
        let state = Arc::new(state);
        let accepts = Arc::clone(&state);
        // The thread ends with the process.
        thread::spawn(move || {
            while let Ok((client, _)) = listener.accept() {
                accepts.connect(client);
            }
        });
        Proxy { directory, state, port: server.port() }
    }

    /// Returns the server's place with this proxy's address.
    pub(crate) fn url(&self, url: &str) -> String {
        let (place, query) = url.split_once("?host=").unwrap();
        let (_, rest) = query.split_once('&').unwrap();
        assert!(rest.starts_with(&format!("port={}", self.port)));
        format!("{place}?host={}&{rest}", self.directory.path().display())
    }

    /// Cuts every connection once this many more bytes have passed in that direction. Later
    /// connections succeed, unless the proxy `stays_down`.
    pub(crate) fn cut_after(&self, way: Way, bytes: i64, stays_down: bool) {
        self.state.stays_down.store(stays_down, Ordering::SeqCst);
        self.state.was_cut.store(false, Ordering::SeqCst);
        self.state.left[way as usize].store(bytes, Ordering::SeqCst);
    }

    /// Forwards everything from now on. Returns whether any connection was cut.
    pub(crate) fn heal(&self) -> bool {
        self.state.left.iter().for_each(|left| left.store(ENDLESS, Ordering::SeqCst));
        self.state.is_down.store(false, Ordering::SeqCst);
        self.state.was_cut.swap(false, Ordering::SeqCst)
    }

    /// Blocks new connections until the guard is dropped.
    pub(crate) fn hold(&self) -> MutexGuard<'_, ()> {
        self.state.gate.lock().unwrap()
    }
}

impl State {
    fn connect(self: &Arc<Self>, client: UnixStream) {
        drop(self.gate.lock().unwrap());
        if self.is_down.load(Ordering::SeqCst) {
            return;
        }
        let Ok(server) = UnixStream::connect(&self.server) else { return };
        self.open.lock().unwrap().extend([client.try_clone().unwrap(), server.try_clone().unwrap()]);
        for (way, from, to) in [
            (Way::ToServer, client.try_clone().unwrap(), server.try_clone().unwrap()),
            (Way::FromServer, server, client),
        ] {
            let state = Arc::clone(self);
            thread::spawn(move || state.pass(way, from, to));
        }
    }

    fn pass(&self, way: Way, mut from: UnixStream, mut to: UnixStream) {
        let mut bytes = [0; 8_192];
        while let Ok(read @ 1..) = from.read(&mut bytes) {
            let left = self.left[way as usize].fetch_sub(read as i64, Ordering::SeqCst);
            let passes = usize::try_from(left).unwrap_or(0).min(read);
            if to.write_all(&bytes[..passes]).is_err() {
                break;
            }
            if passes < read {
                self.left[way as usize].store(ENDLESS, Ordering::SeqCst);
                self.was_cut.store(true, Ordering::SeqCst);
                self.is_down.store(self.stays_down.load(Ordering::SeqCst), Ordering::SeqCst);
                for stream in self.open.lock().unwrap().drain(..) {
                    let _ = stream.shutdown(std::net::Shutdown::Both);
                }
            }
        }
        let _ = from.shutdown(std::net::Shutdown::Both);
        let _ = to.shutdown(std::net::Shutdown::Both);
    }
}
