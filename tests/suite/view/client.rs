//! A viewer's server in this process, and a client that writes every byte of its requests itself.

use std::ffi::OsString;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use foldlog_cli::Output;
use foldlog_test_support::runs::Json;

/// The limit of a wait: nothing on the loopback takes this long.
const PATIENCE: Duration = Duration::from_secs(60);

/// `foldlog view` in a thread of this process, which ends when this is dropped.
pub(crate) struct Viewer {
    pub(super) port: u16,
    pub(super) token: String,
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<u8>>,
}

/// Forwards the output of a verb, line by line.
struct Lines(Vec<u8>, Sender<String>);

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.extend_from_slice(bytes);
        while let Some(end) = self.0.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.0.drain(..=end).collect();
            let _ = self.1.send(String::from_utf8(line).unwrap().trim_end().to_owned());
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Waits like the process's own function, until the sender is dropped.
fn pause(stop: &Receiver<()>, wait: Duration) -> bool {
    matches!(stop.recv_timeout(wait), Err(RecvTimeoutError::Timeout))
}

impl Viewer {
    pub(crate) fn of(path: &Path) -> Viewer {
        Viewer::with(path, &[])
    }

    /// A server with more options.
    pub(super) fn with(path: &Path, options: &[&str]) -> Viewer {
        let options: Vec<OsString> = options.iter().map(OsString::from).collect();
        let (path, (lines, printed), (stop, stopped)) = (path.to_owned(), channel(), channel());
        let thread = std::thread::spawn(move || {
            let (mut stdout, mut stderr) = (Lines(Vec::new(), lines), std::io::sink());
            let child = |_: &Path, _| Err(std::io::Error::other("only the test of the demo runs a child"));
            let pause = |wait| Ok(pause(&stopped, wait));
            let mut output = Output::new(&mut stdout, &mut stderr, &child);
            output.pause = &pause;
            let words = ["foldlog".as_ref(), "view".as_ref(), path.as_os_str(), "--no-open".as_ref()];
            foldlog_cli::run(words.map(OsString::from).into_iter().chain(options), &mut output)
        });
        let url = printed.recv_timeout(PATIENCE).expect("the address is printed");
        let (host, rest) = url.strip_prefix("http://127.0.0.1:").unwrap().split_once('/').unwrap();
        let (port, token) = (host.parse().unwrap(), rest.trim_end_matches('/').to_owned());
        Viewer { port, token, stop: Some(stop), thread: Some(thread) }
    }

    pub(super) fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    /// Sends bytes, and reads until the server ends the connection.
    pub(super) fn send(&self, bytes: &str) -> Answer {
        let mut stream = self.connect();
        // The server may refuse before it has read everything.
        let _ = stream.write_all(bytes.as_bytes());
        Answer::read(&mut stream)
    }

    /// Sends a request with a method, a whole path and headers. The default host is left out if
    /// another one is given.
    pub(super) fn ask(&self, method: &str, path: &str, headers: &[(&str, &str)]) -> Answer {
        let host = format!("127.0.0.1:{}", self.port);
        let mut all = vec![("Connection", "close")];
        if !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("host")) {
            all.push(("Host", &host));
        }
        let head: String =
            all.iter().chain(headers).map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        self.send(&format!("{method} {path} HTTP/1.1\r\n{head}\r\n"))
    }

    /// Gets the path after the token.
    pub(crate) fn get(&self, path: &str) -> Answer {
        self.ask("GET", &format!("/{}/{path}", self.token), &[])
    }

    /// Gets a document that must exist.
    pub(super) fn json(&self, path: &str) -> Json {
        let answer = self.get(path);
        assert_eq!(answer.status, 200, "{path}: {}", answer.body);
        assert_eq!(answer.header("content-type"), Some("application/json; charset=utf-8"), "{path}");
        Json::parse(&answer.body)
    }
}

impl Drop for Viewer {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[derive(Debug)]
pub(crate) struct Answer {
    /// 0 if the connection ended without an answer.
    pub(super) status: u16,
    headers: Vec<(String, String)>,
    pub(crate) body: String,
}

impl Answer {
    pub(super) fn read(stream: &mut TcpStream) -> Answer {
        let mut bytes = Vec::new();
        // A server that closes a connection early may reset it after its answer.
        let _ = stream.read_to_end(&mut bytes);
        let _ = stream.shutdown(Shutdown::Both);
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
        let mut lines = head.lines();
        let status = lines.next().and_then(|line| line.split(' ').nth(1)?.parse().ok()).unwrap_or(0);
        let headers = lines.filter_map(|line| line.split_once(": "));
        let headers: Vec<(String, String)> =
            headers.map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned())).collect();
        let answer = Answer { status, headers, body: body.to_owned() };
        assert_eq!(answer.header("transfer-encoding"), None, "bodies have a length");
        answer
    }

    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(found, _)| found == name).map(|(_, value)| value.as_str())
    }
}
