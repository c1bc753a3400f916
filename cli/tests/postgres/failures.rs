//! Places that refuse, do not exist, or echo their requests. Each error names the place and the
//! answer. No output contains a password, a key, a token or a signature, whoever prints it.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::thread;
use std::time::Duration;

use foldlog_remote::{Error, Retries, open_place_with};

use crate::refusing::{answer_http, refuse_postgres, serve};

const KEY_ID: &str = "AKIAHUNTER";
const SECRET: &str = "hunter2secret";
const TOKEN: &str = "HunterTokenOfASession";
const PASSWORD: &str = "hunter2password";

/// Texts that no output may contain, in lower case. The second and third occur in signed requests.
const SECRETS: [&str; 4] = ["hunter", "aws4-hmac", "signature=", "\u{1b}"];

const SESSION: &str = "014417e2-088b-4e39-825e-7d031e0f8187";

/// A place that fails: its URL, its endpoint, the reported texts, and the advice.
struct Case {
    url: String,
    endpoint: String,
    said: Vec<String>,
    next: &'static str,
}

/// A bucket whose server answers with `each`.
fn bucket(
    said: &[&str],
    next: &'static str,
    each: impl Fn(TcpStream) + Send + Sync + Copy + 'static,
) -> Case {
    let address = serve(each);
    let place = format!("(s3://agents/team at {address}");
    let said = said.iter().map(|said| (*said).to_owned()).chain([place]).collect();
    // A URL of an endpoint may contain a password too.
    let endpoint = format!("http://someone:{PASSWORD}@{address}");
    Case { url: "s3://agents/team".to_owned(), endpoint, said, next }
}

/// A database whose server refuses every client.
fn database(state: &'static str, message: &'static str, said: &[&str], next: &'static str) -> Case {
    let address = serve(move |stream| refuse_postgres(&stream, state, message));
    let place = format!("(PostgreSQL at {address}, database `agents`, schema `foldlog`: SQLSTATE {state}");
    let said = said.iter().map(|said| (*said).to_owned()).chain([place]).collect();
    Case { url: format!("postgres://adviser@{address}/agents"), endpoint: String::new(), said, next }
}

/// Returns an address without a listener.
fn nobody() -> String {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string()
}

/// Answers a TLS client like a server that does not speak TLS.
fn answer_plainly(mut stream: TcpStream) {
    let _ = stream.read(&mut [0; 16]);
    let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
    let _ = io::copy(&mut stream, &mut io::sink());
}

fn xml(code: &str) -> String {
    let quoted = format!("the key {KEY_ID} with {SECRET}, {TOKEN} and {PASSWORD} at \u{1b}[2J");
    format!(
        "<Error><Code>{code}</Code><Message>{quoted}</Message><AWSAccessKeyId>{KEY_ID}</AWSAccessKeyId></Error>"
    )
}

fn buckets() -> Vec<Case> {
    let silent = nobody();
    let unresolved = format!("http://{}.invalid:9000", "a".repeat(64));
    vec![
        bucket(&["HTTP 403 InvalidAccessKeyId)"], "check AWS_ACCESS_KEY_ID", |stream| {
            answer_http(&stream, 403, "", |_| xml("InvalidAccessKeyId"));
        }),
        bucket(&["HTTP 403 SignatureDoesNotMatch)"], "check AWS_SECRET_ACCESS_KEY", |stream| {
            answer_http(&stream, 403, "", |head| xml("SignatureDoesNotMatch") + head);
        }),
        bucket(&["HTTP 403 AccessDenied)"], "may list, read and put objects", |stream| {
            answer_http(&stream, 403, "", |_| xml("AccessDenied"));
        }),
        bucket(&["HTTP 400 ExpiredToken)"], "AWS_SESSION_TOKEN", |stream| {
            answer_http(&stream, 400, "", |_| xml("ExpiredToken"));
        }),
        bucket(
            &["the bucket or directory does not exist", "HTTP 404 NoSuchBucket)"],
            "check the name of the bucket",
            |stream| {
                answer_http(&stream, 404, "", |_| xml("NoSuchBucket"));
            },
        ),
        bucket(
            &["another region", "HTTP 301 PermanentRedirect, the bucket is in the region eu-west-1)"],
            "set AWS_REGION",
            |stream| {
                answer_http(&stream, 301, "x-amz-bucket-region: eu-west-1\r\n", |_| xml("PermanentRedirect"));
            },
        ),
        bucket(&["busy", "HTTP 503 SlowDown)"], "try again later", |stream| {
            answer_http(&stream, 503, "", |_| xml("SlowDown"));
        }),
        // A server that echoes its requests.
        bucket(&["HTTP 403)"], "check the keys", |stream| {
            answer_http(&stream, 403, &format!("x-amz-bucket-region: {TOKEN}\r\n"), |head| {
                let token = head.lines().find_map(|line| line.strip_prefix("x-amz-security-token: "));
                format!("<Error><Code>{}</Code><Message>{head}</Message></Error>", token.unwrap())
            });
        }),
        bucket(&["HTTP 500)"], "check the URL", |stream| {
            answer_http(&stream, 500, "", |head| format!("<html>{head}\u{1b}[2J"));
        }),
        Case {
            url: "s3://agents/team".to_owned(),
            endpoint: format!("http://{silent}"),
            said: vec![format!(
                "the connection was refused: no server listens there (s3://agents/team at {silent})"
            )],
            next: "check the host and the port in AWS_ENDPOINT_URL",
        },
        Case {
            url: "s3://agents/team".to_owned(),
            endpoint: unresolved,
            said: vec!["the name of the host does not resolve (s3://agents/team at aaa".to_owned()],
            next: "check AWS_ENDPOINT_URL",
        },
        Case {
            endpoint: format!("https://{}", serve(answer_plainly)),
            url: "s3://agents/team".to_owned(),
            said: vec!["the server does not support TLS (s3://agents/team at 127.0.0.1:".to_owned()],
            next: "give an endpoint that supports TLS",
        },
    ]
}

fn databases() -> Vec<Case> {
    let silent = nobody();
    let refused =
        |said: String, url: String, next| Case { url, endpoint: String::new(), said: vec![said], next };
    vec![
        database(
            "28P01",
            "password authentication failed for user \"adviser\"",
            &[
                "refuses the user or the password",
                "28P01: password authentication failed for user \"adviser\")",
            ],
            "PGPASSWORD",
        ),
        // A server that echoes the password, and a terminal's control sequences.
        database("28P01", "no such password: {password} \u{1b}[2J", &["SQLSTATE 28P01)"], "PGPASSWORD"),
        database(
            "XX000",
            "\u{1b}[2J",
            &["the server refused the request", r"XX000: \u{1b}[2J)"],
            "check the URL",
        ),
        database(
            "3D000",
            "database \"agents\" does not exist",
            &["the database does not exist", "3D000: database \"agents\" does not exist)"],
            "check the database",
        ),
        database(
            "42501",
            "permission denied",
            &["lacks the right", "42501: permission denied)"],
            "grant the user CONNECT",
        ),
        database(
            "53300",
            "sorry, too many clients already",
            &["too many clients already)"],
            "max_connections",
        ),
        database("57P03", "the database system is starting up", &["is starting up)"], "try again later"),
        refused(
            format!("the connection was refused: no server listens there (PostgreSQL at {silent},"),
            format!("postgres://adviser@{silent}/agents"),
            "check the host and the port in the URL",
        ),
        refused(
            "the name of the host does not resolve (PostgreSQL at aaa".to_owned(),
            format!("postgres://adviser@{}.invalid/agents?sslmode=disable", "a".repeat(64)),
            "check the host in the URL",
        ),
        refused(
            "the server does not support TLS (PostgreSQL at 127.0.0.1:".to_owned(),
            format!(
                "postgres://adviser@{}/agents?sslmode=verify-full",
                serve(|stream| refuse_postgres(&stream, "XX000", ""))
            ),
            "sslmode=disable",
        ),
    ]
}

fn variables(endpoint: &str) -> BTreeMap<String, String> {
    [
        ("AWS_ENDPOINT_URL", endpoint),
        ("AWS_REGION", "us-east-1"),
        ("AWS_ACCESS_KEY_ID", KEY_ID),
        ("AWS_SECRET_ACCESS_KEY", SECRET),
        ("AWS_SESSION_TOKEN", TOKEN),
        ("PGPASSWORD", PASSWORD),
        ("NO_PROXY", "127.0.0.1"),
    ]
    .map(|(name, value)| (name.to_owned(), value.to_owned()))
    .into()
}

/// Runs the program. Returns its exit code and all its output.
fn printed(words: &[&str], endpoint: &str) -> (i32, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_foldlog"));
    let ran = command.args(words).env_clear().envs(variables(endpoint)).output().unwrap();
    let text = [ran.stdout, ran.stderr].concat();
    (ran.status.code().unwrap(), String::from_utf8(text).unwrap())
}

fn check(text: &str) {
    let small = text.to_ascii_lowercase();
    assert!(SECRETS.iter().all(|secret| !small.contains(secret)), "{text}");
}

/// Few attempts, each with this timeout.
fn retries(patience: Duration) -> Retries {
    let wait = Duration::from_millis(1);
    Retries {
        within: Duration::ZERO,
        attempts: 2,
        request_timeout: patience,
        first_wait: wait,
        longest_wait: wait,
    }
}

/// Returns the texts of a place and of its failure, in each form that a host can print.
fn reported(url: &str, endpoint: &str, patience: Duration) -> String {
    let place = match open_place_with(url, retries(patience), &variables(endpoint)) {
        Ok(place) => place,
        Err(error) => return format!("{error} {error:?}"),
    };
    let error = place.sessions().unwrap_err();
    let replicator = place.replicator("worker").unwrap();
    let fed = replicator.read(SESSION.parse().unwrap(), &mut |_| {}).unwrap_err();
    format!("{error} {error:?} {error:#?} {place:?} {fed:?} {replicator:?} {}", replicator.place())
}

fn reaches_buckets() -> bool {
    let opened = open_place_with("s3://agents", Retries::default(), &BTreeMap::new());
    !matches!(opened, Err(Error::NotBuiltIn { .. }))
        || crate::server::skip::<()>("no buckets are built in").is_some()
}

#[test]
fn each_failure_names_place_host_and_answer_and_no_secret_is_in_any_text() {
    let buckets = if reaches_buckets() { buckets() } else { Vec::new() };
    let cases: Vec<Case> = databases().into_iter().chain(buckets).collect();
    // Transient errors are retried for ten seconds, in each case.
    thread::scope(|scope| {
        for case in &cases {
            scope.spawn(|| {
                let Case { url, endpoint, said, next } = case;
                let reported = reported(url, endpoint, Duration::from_secs(20));
                check(&reported);
                let (code, printed) = printed(&["sessions", url], endpoint);
                check(&printed);
                assert_eq!(code, 2, "{printed}");
                for said in said {
                    assert!(
                        reported.contains(said) && printed.contains(said),
                        "{said}: {printed}\n{reported}"
                    );
                }
                assert!(printed.contains(next), "{next}: {printed}");
            });
        }
    });
}

#[test]
fn a_server_that_is_silent_is_named() {
    let silent = serve(|mut stream| drop(io::copy(&mut stream, &mut io::sink())));
    let patience = Duration::from_millis(300);
    let text = reported(&format!("postgres://adviser@{silent}/agents"), "", patience);
    check(&text);
    assert!(text.contains(&format!("no answer came in time (PostgreSQL at {silent},")), "{text}");
    if reaches_buckets() {
        let text = reported("s3://agents/team", &format!("http://{silent}"), patience);
        check(&text);
        assert!(text.contains(&format!("no answer came in time (s3://agents/team at {silent})")), "{text}");
    }
}

#[test]
fn no_verb_prints_a_password_that_was_typed_into_a_url() {
    let directory = tempfile::tempdir().unwrap();
    let to = directory.path().join("to").display().to_string();
    for url in [
        format!("postgres://adviser:{PASSWORD}@127.0.0.1:1/agents"),
        format!("postgres://adviser@127.0.0.1:1/agents?password={PASSWORD}"),
        format!("s3://{KEY_ID}:{SECRET}@agents/team"),
        format!("s3://agents/team?X-Amz-Credential={KEY_ID}&X-Amz-Signature={SECRET}"),
        format!("https://someone:{PASSWORD}@agents.example/team?X-Amz-Security-Token={TOKEN}"),
    ] {
        let (path, query) = url.split_at(url.find('?').unwrap_or(url.len()));
        let held = format!("{path}/sessions/{SESSION}{query}");
        for words in [
            vec!["sessions", &url],
            vec!["verify", &url],
            vec!["verify", &held],
            vec!["show", &held],
            vec!["show", &url],
            vec!["show", &url, SESSION, "--nothing"],
            vec!["tail", &held],
            vec!["state", &held],
            vec!["diff", &to, "--with", &held],
            vec!["ledger", &held],
            vec!["report", &held, "--out", &to],
            vec!["gc", &url],
            vec!["compact", &held],
            vec!["rewind", &held, "0"],
            vec!["recover", &held],
            vec!["salvage", &held, "--to", &to],
            vec!["salvage", &to, "--to", &url],
            vec!["backup", &url, "--to", &to],
            vec!["pull", &url, "--to", &to],
            vec!["push", &to, &url],
            vec!["takeover", &url, "--to", &to, "--by", "me", "--reason", "gone", "--now"],
            vec!["import", "openai", &url, "--store", &to],
            vec!["view", &url],
            vec![&url],
            vec!["sessions", "--memory", &url],
            vec!["sessions", &url, "--json"],
        ] {
            let (code, printed) = printed(&words, "http://127.0.0.1:1");
            check(&printed);
            assert_eq!(code, 2, "{words:?}: {printed}");
        }
    }
}
