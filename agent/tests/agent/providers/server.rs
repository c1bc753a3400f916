//! A server on loopback that answers each request by a script.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;

use serde_json::Value;

use crate::rules::{self, Protocol};

/// The server's reaction to a request.
#[derive(Clone, Debug)]
pub(crate) enum Does {
    /// Replies with a status, further headers and a body whose length it states.
    Replies(u16, Vec<(&'static str, String)>, Vec<u8>),
    /// Writes these bytes, and closes the connection.
    Writes(Vec<u8>),
    /// Writes these bytes, and then nothing until the server is dropped.
    Hangs(Vec<u8>),
    /// Replies with a body of these bytes and this many blanks, without a stated length.
    Floods(Vec<u8>, usize),
}

impl Does {
    pub(crate) fn json(body: &Value) -> Does {
        Does::Replies(200, vec![("content-type", "application/json".into())], body.to_string().into_bytes())
    }

    pub(crate) fn fails(status: u16, headers: &[(&'static str, &str)], body: &Value) -> Does {
        let headers = headers.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
        Does::Replies(status, headers, body.to_string().into_bytes())
    }

    /// Streams events and closes the connection.
    pub(crate) fn streams(events: &str) -> Does {
        Does::Writes(stream(events))
    }
}

/// Returns the bytes of a reply that streams events.
pub(crate) fn stream(events: &str) -> Vec<u8> {
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nx-request-id: req_7\r\nconnection: close\r\n\r\n";
    format!("{head}{events}").into_bytes()
}

/// A request that arrived.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    /// First line and headers.
    pub(crate) head: String,
    pub(crate) body: Value,
    /// The address of the tunnel, if the request came through the server as a proxy.
    pub(crate) tunnel: Option<String>,
}

impl Seen {
    pub(crate) fn has_header(&self, line: &str) -> bool {
        self.head.to_ascii_lowercase().lines().any(|header| header == line.to_ascii_lowercase())
    }
}

type Script = dyn Fn(&Seen, usize) -> Does + Send + Sync;

#[derive(Default)]
struct Shared {
    seen: Mutex<Vec<Seen>>,
    over: Mutex<bool>,
    ended: Condvar,
    stopped: AtomicBool,
}

/// A server that runs until it is dropped.
pub(crate) struct Server {
    address: SocketAddr,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Starts a server with the same reaction to each request.
    pub(crate) fn that(does: Does) -> Server {
        Server::start(move |_, _| does.clone())
    }

    /// Starts a server that calls `script` for each request that its provider would accept, counted
    /// from 0. The server refuses all other requests, as its provider would.
    pub(crate) fn start(script: impl Fn(&Seen, usize) -> Does + Send + Sync + 'static) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared::default());
        let (of_thread, script): (_, Arc<Script>) = (Arc::clone(&shared), Arc::new(script));
        let thread = std::thread::spawn(move || {
            let mut connections = Vec::new();
            for stream in listener.incoming() {
                if of_thread.stopped.load(Ordering::SeqCst) {
                    break;
                }
                let (shared, script) = (Arc::clone(&of_thread), Arc::clone(&script));
                // A client that gives up breaks its connection; its own test judges that.
                connections.push(std::thread::spawn(move || drop(serve(stream.unwrap(), &shared, &*script))));
            }
            connections.into_iter().for_each(|connection| connection.join().unwrap());
        });
        Server { address, shared, thread: Some(thread) }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(crate) fn host(&self) -> String {
        self.address.to_string()
    }

    pub(crate) fn seen(&self) -> Vec<Seen> {
        self.shared.seen.lock().unwrap().clone()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        *self.shared.over.lock().unwrap() = true;
        self.shared.ended.notify_all();
        self.shared.stopped.store(true, Ordering::SeqCst);
        drop(TcpStream::connect(self.address));
        if let Some(thread) = self.thread.take() {
            let outcome = thread.join();
            if !std::thread::panicking() {
                outcome.unwrap();
            }
        }
    }
}

fn serve(stream: TcpStream, shared: &Shared, script: &Script) -> std::io::Result<()> {
    let mut out = stream.try_clone()?;
    let mut input = BufReader::new(stream);
    let (mut head, mut tunnel) = (read_head(&mut input)?, None);
    if let Some(rest) = head.strip_prefix("CONNECT ") {
        tunnel = rest.split(' ').next().map(str::to_owned);
        out.write_all(b"HTTP/1.1 200 OK\r\n\r\n")?;
        head = read_head(&mut input)?;
    }
    let length = head
        .to_ascii_lowercase()
        .lines()
        .find_map(|line| line.strip_prefix("content-length: ")?.parse().ok());
    let mut body = vec![0; length.unwrap_or(0)];
    input.read_exact(&mut body)?;
    let Ok(body) = serde_json::from_slice(&body) else { return Ok(()) };
    let seen = Seen { head, body, tunnel };
    let number = {
        let mut all = shared.seen.lock().unwrap();
        all.push(seen.clone());
        all.len() - 1
    };
    let is_anthropics = seen.head.starts_with("POST /v1/messages ");
    let protocol = if is_anthropics { Protocol::Anthropic } else { Protocol::OpenAi };
    let does = match rules::broken(protocol, &seen.body) {
        Some(rule) => Does::fails(
            400,
            &[],
            &serde_json::json!({
                "type": "error", "error": { "type": "invalid_request_error", "message": rule },
            }),
        ),
        None => script(&seen, number),
    };
    match does {
        Does::Replies(status, headers, body) => {
            let mut head =
                format!("HTTP/1.1 {status} OK\r\ncontent-length: {}\r\nconnection: close\r\n", body.len());
            headers.iter().for_each(|(name, value)| head.push_str(&format!("{name}: {value}\r\n")));
            out.write_all(format!("{head}\r\n").as_bytes())?;
            out.write_all(&body)?;
        }
        Does::Writes(bytes) => out.write_all(&bytes)?,
        Does::Hangs(bytes) => {
            out.write_all(&bytes)?;
            let over = shared.over.lock().unwrap();
            drop(shared.ended.wait_while(over, |over| !*over).unwrap());
        }
        Does::Floods(bytes, count) => {
            out.write_all(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n")?;
            out.write_all(&bytes)?;
            let blanks = vec![b' '; 1 << 16];
            (0..count / blanks.len()).try_for_each(|_| out.write_all(&blanks))?;
        }
    }
    out.flush()
}

fn read_head(input: &mut impl BufRead) -> std::io::Result<String> {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if input.read_line(&mut head)? == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
    }
    Ok(head)
}
