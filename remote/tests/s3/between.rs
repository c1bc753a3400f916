//! A proxy between a client and the server that applies a test's rule to each request.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

/// Fate of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Act {
    /// The server gets it, and its answer is returned.
    Pass,
    /// The server gets it, and its answer is lost.
    LoseAnswer,
    /// The server gets it without its condition.
    Unconditionally,
    /// The server gets it, and its answer dates the object back by years.
    Aged,
    /// The server does not get it. This is the answer: a status and a body.
    Answer(u16, String),
}

/// Makes the answer of an S3 server that refuses a request.
pub(crate) fn refusal(status: u16, code: &str, message: &str) -> Act {
    let body =
        format!("<?xml version=\"1.0\"?><Error><Code>{code}</Code><Message>{message}</Message></Error>");
    Act::Answer(status, body)
}

type Rule = dyn Fn(&str, &str, usize) -> Act + Send + Sync;

/// A server in front of another one. It ends with the test's process.
pub(crate) struct Between {
    pub(crate) address: String,
    /// Method and path of each request so far.
    pub(crate) met: Arc<Mutex<Vec<(String, String)>>>,
}

impl Between {
    /// Starts a proxy to `server`. `rule` takes method and path of each request, and the number of
    /// requests before it.
    pub(crate) fn before(
        server: &str,
        rule: impl Fn(&str, &str, usize) -> Act + Send + Sync + 'static,
    ) -> Between {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let met = Arc::new(Mutex::new(Vec::new()));
        let (rule, seen, server): (Arc<Rule>, _, _) = (Arc::new(rule), Arc::clone(&met), server.to_owned());
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (rule, seen, server) = (Arc::clone(&rule), Arc::clone(&seen), server.clone());
                thread::spawn(move || serve(stream.unwrap(), &server, rule.as_ref(), &seen));
            }
        });
        Between { address, met }
    }

    /// Returns the number of requests with this method and this end of the path.
    pub(crate) fn count(&self, method: &str, end: &str) -> usize {
        self.met.lock().unwrap().iter().filter(|(its, path)| its == method && path.ends_with(end)).count()
    }
}

/// Answers one request, and closes the connection.
fn serve(stream: TcpStream, server: &str, rule: &Rule, met: &Mutex<Vec<(String, String)>>) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut head = Vec::new();
    loop {
        let mut line = String::new();
        // A connection that was opened ahead, and is not used.
        if reader.read_line(&mut line).unwrap_or(0) == 0 {
            return;
        }
        if line == "\r\n" {
            break;
        }
        head.push(line);
    }
    let is = |line: &str, name: &str| line.to_ascii_lowercase().starts_with(name);
    let len = head.iter().find(|line| is(line, "content-length:"));
    let len = len.map_or(0, |line| line.split(':').nth(1).unwrap().trim().parse().unwrap());
    let mut body = vec![0; len];
    reader.read_exact(&mut body).unwrap();
    let mut words = head[0].split(' ');
    let (method, path) = (words.next().unwrap().to_owned(), words.next().unwrap().to_owned());
    let act = {
        let mut met = met.lock().unwrap();
        let before = met.iter().filter(|one| **one == (method.clone(), path.clone())).count();
        met.push((method.clone(), path.clone()));
        rule(&method, &path, before)
    };
    let mut stream = stream;
    if let Act::Answer(status, text) = act {
        let len = text.len();
        let answer =
            format!("HTTP/1.1 {status} Said\r\nContent-Length: {len}\r\nConnection: close\r\n\r\n{text}");
        let _ = stream.write_all(answer.as_bytes());
        return;
    }
    let mut upstream = TcpStream::connect(server).unwrap();
    let drops_condition = act == Act::Unconditionally;
    let drops = |line: &str| is(line, "connection:") || (drops_condition && is(line, "if-none-match:"));
    head.retain(|line| !drops(line));
    upstream.write_all(head.concat().as_bytes()).unwrap();
    upstream.write_all(b"Connection: close\r\n\r\n").unwrap();
    upstream.write_all(&body).unwrap();
    let mut answer = Vec::new();
    upstream.read_to_end(&mut answer).unwrap();
    if act == Act::Aged {
        answer = aged(&answer);
    }
    if act != Act::LoseAnswer {
        let _ = stream.write_all(&answer);
    }
}

/// Returns an answer with an older modification time of the object.
fn aged(answer: &[u8]) -> Vec<u8> {
    let end = answer.windows(4).position(|four| four == b"\r\n\r\n").unwrap();
    let (head, body) = answer.split_at(end);
    let lines = std::str::from_utf8(head).unwrap().split("\r\n");
    let lines = lines.map(|line| match line.to_ascii_lowercase().starts_with("last-modified:") {
        true => "Last-Modified: Thu, 01 Jan 2015 00:00:00 GMT",
        false => line,
    });
    [lines.collect::<Vec<_>>().join("\r\n").as_bytes(), body].concat()
}
