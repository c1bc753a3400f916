//! A small S3 server with the requests that the protocol needs. It keeps objects in a directory, so
//! that it can be killed and restarted, and runs as another process of this test binary.

use std::fs;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::child::{Process, say};
use crate::net::{Net, PORT};

/// Names the variable that contains the server's directory.
const DIRECTORY: &str = "FOLDLOG_HOSTS_SERVER";

/// Runs the bucket's server in its own namespace.
pub(crate) struct Server {
    directory: tempfile::TempDir,
    namespace: String,
    process: Option<Process>,
}

impl Server {
    pub(crate) fn start(net: &Net) -> Server {
        let directory = tempfile::tempdir().unwrap();
        let mut server = Server { directory, namespace: net.server(), process: None };
        server.start_again();
        server
    }

    pub(crate) fn start_again(&mut self) {
        let directory = (DIRECTORY, self.directory.path().display().to_string());
        let mut process = Process::start(&self.namespace, &[], "server::part_of_a_server", &[directory]);
        assert_eq!(process.hear().as_deref(), Some("listens"));
        self.process = Some(process);
    }

    pub(crate) fn kill(&mut self) {
        self.process.take().unwrap().kill();
    }
}

/// Runs the server in a process of its own.
#[test]
#[ignore = "run by other tests, as a process of its own"]
fn part_of_a_server() {
    let Ok(directory) = std::env::var(DIRECTORY) else { return };
    let listener = TcpListener::bind(("0.0.0.0", PORT)).unwrap();
    say("listens");
    for stream in listener.incoming() {
        let (stream, directory) = (stream.unwrap(), PathBuf::from(&directory));
        // Ignores the error of a client that disconnects.
        std::thread::spawn(move || drop(serve(stream, &directory)));
    }
}

/// Answers the requests of one connection in order.
fn serve(stream: TcpStream, directory: &Path) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut stream = stream;
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 {
            return Ok(());
        }
        let (mut len, mut creates) = (0, false);
        loop {
            let mut header = String::new();
            reader.read_line(&mut header)?;
            let Some((name, value)) = header.trim_end().split_once(':') else { break };
            match name.to_ascii_lowercase().as_str() {
                "content-length" => len = value.trim().parse().unwrap_or(0),
                "if-none-match" => creates = value.trim() == "*",
                _ => {}
            }
        }
        let mut body = vec![0; len];
        reader.read_exact(&mut body)?;
        let mut words = line.split(' ');
        let (method, target) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        // The first path component is the bucket's name.
        let key = path.trim_start_matches('/').split_once('/').map_or("", |(_, key)| key);
        // A HEAD is answered like a GET, without the bytes.
        let of = if method == "HEAD" { "GET" } else { method };
        let (status, answer) = answer(directory, of, key, query, &body, creates)?;
        let head = format!(
            "HTTP/1.1 {status}\r\nContent-Length: {}\r\nETag: \"x\"\r\nLast-Modified: Fri, 01 Jan 2027 00:00:00 GMT\r\n\r\n",
            answer.len()
        );
        let bytes = if method == "HEAD" { &[] } else { answer.as_slice() };
        stream.write_all(&[head.as_bytes(), bytes].concat())?;
    }
}

fn answer(
    directory: &Path,
    method: &str,
    key: &str,
    query: &str,
    body: &[u8],
    creates: bool,
) -> std::io::Result<(&'static str, Vec<u8>)> {
    let file = directory.join(key.replace('/', "%"));
    Ok(match method {
        "PUT" if creates => match create(directory, &file, body) {
            Ok(()) => ("200 OK", Vec::new()),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                ("412 Precondition Failed", b"<Error><Code>PreconditionFailed</Code></Error>".to_vec())
            }
            Err(error) => return Err(error),
        },
        "GET" if key.is_empty() => ("200 OK", list(directory, query)?),
        "GET" => match fs::read(&file) {
            Ok(bytes) => ("200 OK", bytes),
            Err(_) => ("404 Not Found", b"<Error><Code>NoSuchKey</Code></Error>".to_vec()),
        },
        "POST" => {
            let text = String::from_utf8_lossy(body);
            for key in text.split("<Key>").skip(1).filter_map(|rest| rest.split("</Key>").next()) {
                let _ = fs::remove_file(directory.join(key.replace('/', "%")));
            }
            ("200 OK", b"<DeleteResult></DeleteResult>".to_vec())
        }
        _ => ("501 Not Implemented", Vec::new()),
    })
}

/// Creates an object that must not exist, atomically, even if the server is killed.
fn create(directory: &Path, file: &Path, body: &[u8]) -> std::io::Result<()> {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let number = NUMBER.fetch_add(1, Ordering::SeqCst);
    let temporary = directory.join(format!(".{}-{number}", std::process::id()));
    let mut written = fs::File::create(&temporary)?;
    written.write_all(body)?;
    nix::unistd::fsync(written.as_fd())?;
    let created = fs::hard_link(&temporary, file);
    fs::remove_file(&temporary)?;
    created
}

/// Lists the objects with the query's prefix.
fn list(directory: &Path, query: &str) -> std::io::Result<Vec<u8>> {
    let prefix = query.split('&').find_map(|part| part.strip_prefix("prefix=")).unwrap_or("");
    let prefix = prefix.replace("%2F", "%").replace('/', "%");
    let mut answer = "<ListBucketResult><IsTruncated>false</IsTruncated>".to_owned();
    for entry in fs::read_dir(directory)? {
        let name = entry?.file_name().into_string().unwrap_or_default();
        if name.starts_with(&prefix) && !name.starts_with('.') {
            let key = name.replace('%', "/");
            answer += &format!(
                "<Contents><Key>{key}</Key><LastModified>2027-01-01T00:00:00Z</LastModified><Size>1</Size><ETag>\"x\"</ETag></Contents>"
            );
        }
    }
    Ok((answer + "</ListBucketResult>").into_bytes())
}
