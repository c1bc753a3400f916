//! The server, and buckets in it.

use std::fs::File;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use foldlog_remote::{PlaceEnvironment, Retries};

/// Must not occur in any text.
pub(crate) const SECRET: &str = "hunter2hunter2hunter2";

/// Id of the key, which must not occur in any text either.
pub(crate) const KEY_ID: &str = "AKIAHUNTER";

/// A bucket for one test.
pub(crate) struct Server {
    /// Address of the server: `127.0.0.1:PORT`.
    pub(crate) address: String,
    pub(crate) bucket: String,
}

/// Makes a bucket for the test of this thread, or reports that the test is skipped.
pub(crate) fn bucket() -> Option<Server> {
    let Some(endpoint) = std::env::var("FOLDLOG_S3_ENDPOINT").ok().filter(|endpoint| !endpoint.is_empty())
    else {
        skipped("FOLDLOG_S3_ENDPOINT names no server that speaks as S3 does");
        return None;
    };
    let address = endpoint.trim_start_matches("http://").trim_end_matches('/').to_owned();
    let server = Server { address, bucket: format!("foldlog-{}", uuid::Uuid::new_v4().simple()) };
    let answer = server.ask("PUT", "");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    Some(server)
}

fn skipped(reason: &str) {
    println!("skipped: {reason}");
    let Some(path) = std::env::var_os("FOLDLOG_SKIPPED") else { return };
    let thread = std::thread::current();
    let line = format!("{}: {reason}\n", thread.name().unwrap_or("a test"));
    let file = File::options().create(true).append(true).open(path);
    file.and_then(|mut file| file.write_all(line.as_bytes())).unwrap();
}

impl Server {
    /// Sends a request that needs no signature here, and returns the answer.
    fn ask(&self, method: &str, path: &str) -> String {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        let Server { address, bucket } = self;
        write!(
            stream,
            "{method} /{bucket}{path} HTTP/1.1\r\nHost: {address}\r\nContent-Length: 0\r\nConnection: close\r\n\
             Authorization: AWS4-HMAC-SHA256 Credential=a/20270101/us-east-1/s3/aws4_request\r\n\r\n"
        )
        .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    pub(crate) fn url(&self) -> String {
        format!("s3://{}/team/agents", self.bucket)
    }

    /// Variables to reach the bucket.
    pub(crate) fn variables(&self) -> PlaceEnvironment {
        variables(&self.address)
    }
}

/// Variables to reach a server at an address.
pub(crate) fn variables(address: &str) -> PlaceEnvironment {
    [
        ("AWS_ENDPOINT_URL", format!("http://{address}")),
        ("AWS_REGION", "us-east-1".to_owned()),
        ("AWS_ACCESS_KEY_ID", KEY_ID.to_owned()),
        ("AWS_SECRET_ACCESS_KEY", SECRET.to_owned()),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into()
}

/// Few attempts, and short waits between them.
pub(crate) fn retries() -> Retries {
    Retries {
        within: Duration::ZERO,
        attempts: 3,
        request_timeout: Duration::from_secs(30),
        first_wait: Duration::from_millis(1),
        longest_wait: Duration::from_millis(2),
    }
}
