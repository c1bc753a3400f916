//! Refused clients, and attacks that a server withstands.

use std::io::Write;
use std::net::TcpStream;

use uuid::Uuid;

use super::Fixture;
use super::client::{Answer, Viewer};

/// A store of one small session, and its server.
fn viewer() -> (Fixture, Viewer) {
    let fixture = Fixture::of_history(20, 5);
    let viewer = Viewer::of(fixture.store());
    (fixture, viewer)
}

#[test]
fn nothing_is_said_to_whoever_does_not_know_the_token() {
    let (fixture, viewer) = viewer();
    let token = &viewer.token;
    let other = format!("{}{}", if token.starts_with('0') { '1' } else { '0' }, &token[1..]);
    let wrong =
        [String::new(), other, token[..31].to_owned(), format!("{token}0"), token.to_uppercase() + "x"];
    for wrong in wrong {
        for path in ["", "sessions", "pages/main.js", &format!("session/{}/head", fixture.id())] {
            let answer = viewer.ask("GET", &format!("/{wrong}/{path}"), &[]);
            assert_eq!((answer.status, answer.body.as_str()), (404, ""), "/{wrong}/{path}");
        }
    }
    assert_eq!(viewer.ask("GET", "/", &[]).status, 404);
    assert_eq!(viewer.get("sessions").status, 200);
}

#[test]
fn only_pages_of_this_server_may_ask_and_only_by_its_names() {
    let (_fixture, viewer) = viewer();
    let path = format!("/{}/sessions", viewer.token);
    let port = viewer.port;
    let status = |headers: &[(&str, &str)]| viewer.ask("GET", &path, headers).status;
    for host in
        ["attacker.example", "127.0.0.1", "127.0.0.1:1", &format!("127.0.0.1.attacker.example:{port}")]
    {
        assert_eq!(status(&[("Host", host)]), 403, "{host}");
    }
    let own = format!("localhost:{port}");
    assert_eq!(status(&[("Host", &own)]), 200);
    assert_eq!(status(&[("Host", &own), ("Host", "attacker.example")]), 403, "two names");
    for origin in
        ["null", "http://attacker.example", &format!("https://127.0.0.1:{port}"), "http://127.0.0.1:1"]
    {
        assert_eq!(status(&[("Origin", origin)]), 403, "{origin}");
    }
    assert_eq!(status(&[("Origin", &format!("http://127.0.0.1:{port}"))]), 200);
    for (site, expected) in [("cross-site", 403), ("same-site", 403), ("same-origin", 200), ("none", 200)] {
        assert_eq!(status(&[("Sec-Fetch-Site", site)]), expected, "{site}");
    }
    let absolute = format!("http://attacker.example{path}");
    assert_eq!(viewer.ask("GET", &absolute, &[]).status, 403, "a proxy's request");
}

#[test]
fn no_path_leads_out_of_what_the_server_was_given() {
    let (fixture, viewer) = viewer();
    std::fs::write(fixture.store().join("secret.txt"), "secret").unwrap();
    let id = fixture.id();
    let unknown = Uuid::new_v4();
    let upper = id.to_uppercase();
    let simple = id.replace('-', "");
    let paths = [
        "..",
        "../secret.txt",
        "%2e%2e",
        "%2e%2e/secret.txt",
        "pages/..",
        "pages/../../secret.txt",
        "pages/%2e%2e%2fsecret.txt",
        "pages/..%2f..%2fsecret.txt",
        "pages/",
        "pages/main.js/",
        "pages//main.js",
        "secret.txt",
        "session",
        "session/",
        "session/../head",
        "session/%2e%2e/head",
        "session/../../secret.txt",
        "session/./head",
        "session//head",
        "pages/main.js%00",
        "session/x/head",
        &format!("session/{unknown}/"),
        &format!("session/{unknown}/head"),
        &format!("session/{upper}/head"),
        &format!("session/{simple}/head"),
        &format!("session/{id}/../head"),
        &format!("session/{id}/nothing"),
        &format!("session/%7b{id}%7d/head"),
    ];
    for path in paths {
        let answer = viewer.get(path);
        assert_eq!(answer.status, 404, "{path}: {}", answer.body);
        assert!(!answer.body.contains("secret"), "{path}");
    }
    // A link in the directory of sessions is no session.
    std::os::unix::fs::symlink(&fixture.session, fixture.store().join("sessions").join(unknown.to_string()))
        .unwrap();
    assert_eq!(viewer.get(&format!("session/{unknown}/head")).status, 404);
    assert_eq!(viewer.get(&format!("session/{id}/head")).status, 200);
}

#[test]
fn a_server_of_one_session_shows_no_other() {
    let fixture = Fixture::of_history(20, 5);
    let store = foldlog_tests::shown::store(fixture.store());
    let other = foldlog_tests::shown::history(&store, 20, 6);
    let viewer = Viewer::of(&fixture.session);
    let first = viewer.get("");
    assert_eq!(
        (first.status, first.header("location")),
        (302, Some(format!("session/{}/", fixture.id()).as_str()))
    );
    assert_eq!(viewer.get(&format!("session/{}/head", fixture.id())).status, 200);
    let other = other.file_name().unwrap().to_str().unwrap();
    assert_eq!(viewer.get(&format!("session/{other}/head")).status, 404);
    assert_eq!(viewer.get("sessions").status, 404);
}

#[test]
fn only_get_and_head_are_answered_and_no_body_is_read() {
    let (_fixture, viewer) = viewer();
    let path = format!("/{}/sessions", viewer.token);
    for method in ["POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE"] {
        let answer = viewer.ask(method, &path, &[]);
        assert_eq!((answer.status, answer.header("allow")), (405, Some("GET, HEAD")), "{method}");
    }
    // The bodies never arrive: a server that waits for them waits forever.
    let claimed = viewer.ask("POST", &path, &[("Content-Length", "1073741824")]);
    assert_eq!(claimed.status, 405);
    let claimed = viewer.ask("GET", &path, &[("Content-Length", "1073741824")]);
    assert_eq!(claimed.status, 413);
    let endless = viewer.ask("GET", &path, &[("Transfer-Encoding", "chunked")]);
    assert_eq!(endless.status, 413);
}

/// More bytes than the system buffers on a loopback connection without a reader.
const BUFFERED_MAX: u64 = 64 << 20;

#[test]
fn a_body_of_a_gigabyte_is_refused_and_not_taken() {
    let (_fixture, viewer) = viewer();
    let path = format!("/{}/sessions", viewer.token);
    let part = vec![b'x'; 1 << 20];
    let chunk = [b"100000\r\n".as_slice(), &part, b"\r\n"].concat();
    for (method, header, part, status) in [
        ("GET", "Content-Length: 1073741824", &part, 413),
        ("POST", "Content-Length: 1073741824", &part, 405),
        ("GET", "Transfer-Encoding: chunked", &chunk, 413),
    ] {
        let mut stream = viewer.connect();
        let host = format!("Host: 127.0.0.1:{}", viewer.port);
        stream
            .write_all(format!("{method} {path} HTTP/1.1\r\n{host}\r\n{header}\r\n\r\n").as_bytes())
            .unwrap();
        let mut reader = stream.try_clone().unwrap();
        // Everything is written, until the server ends the connection.
        let taken = (0..1024).take_while(|_| stream.write_all(part).is_ok()).count() as u64 * (1 << 20);
        assert!(taken < BUFFERED_MAX, "{method} with {header}: {taken} bytes were taken");
        // A reset may overtake the answer.
        let answer = Answer::read(&mut reader);
        assert!([0, status].contains(&answer.status), "{method} with {header}: {}", answer.status);
    }
    assert_eq!(viewer.get("sessions").status, 200);
}

/// Four times as many as the server keeps.
const HALF_REQUESTS: usize = 256;

/// Clients that sent half a request blocked all other clients, each sixty-four of them for twenty
/// seconds.
#[test]
fn half_requests_keep_nobody_waiting() {
    let (_fixture, viewer) = viewer();
    let mut halves: Vec<TcpStream> = Vec::new();
    for _ in 0..HALF_REQUESTS {
        let mut stream = viewer.connect();
        stream.write_all(b"GET / HTTP/1.1\r\nHost: 127.0.0.1").unwrap();
        halves.push(stream);
    }
    assert_eq!(viewer.get("sessions").status, 200);
    // The oldest one was dropped.
    let first = Answer::read(&mut halves[0]);
    assert_eq!(first.status, 0, "{}", first.body);
    assert_eq!(viewer.get("sessions").status, 200);
}

#[test]
fn a_head_tells_what_a_get_would_without_its_body() {
    let (fixture, viewer) = viewer();
    for path in ["", "sessions", "pages/main.js", &format!("session/{}/head", fixture.id())] {
        let path = format!("/{}/{path}", viewer.token);
        let (head, get) = (viewer.ask("HEAD", &path, &[]), viewer.ask("GET", &path, &[]));
        assert_eq!((head.status, head.body.as_str()), (200, ""), "{path}");
        assert_eq!(head.header("content-type"), get.header("content-type"));
        assert!(!get.body.is_empty());
    }
}

#[test]
fn every_answer_tells_browsers_to_be_strict() {
    let (fixture, viewer) = viewer();
    let refused = viewer.ask("GET", "/", &[]);
    let missing = viewer.get("nothing");
    let page = viewer.get(&format!("session/{}/", fixture.id()));
    let data = viewer.get(&format!("session/{}/head", fixture.id()));
    for answer in [refused, missing, page, data] {
        assert_eq!(
            answer.header("content-security-policy"),
            Some(
                "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; base-uri 'none'; \
                 form-action 'none'; frame-ancestors 'none'"
            )
        );
        for (name, value) in [
            ("x-content-type-options", "nosniff"),
            ("referrer-policy", "no-referrer"),
            ("cache-control", "no-store"),
            ("cross-origin-resource-policy", "same-origin"),
        ] {
            assert_eq!(answer.header(name), Some(value), "{name}");
        }
        assert_eq!(answer.header("access-control-allow-origin"), None);
    }
}

#[test]
fn long_and_malformed_requests_are_refused() {
    let (fixture, viewer) = viewer();
    let long = viewer.get(&format!("sessions?from={}", "0".repeat(9000)));
    assert_eq!(long.status, 414);
    // An endless head is refused once it is longer than any valid one.
    let head = format!("GET /{}/sessions HTTP/1.1\r\nHost: 127.0.0.1:{}\r\n", viewer.token, viewer.port);
    let many: String = (0..100).map(|number| format!("X-{number}: y\r\n")).collect();
    for endless in ["X: ".to_owned() + &"y".repeat(1 << 20), "X: y\r\n".repeat(100_000), many + "\r\n"] {
        let answer = viewer.send(&format!("{head}{endless}"));
        assert!([0, 400, 431].contains(&answer.status), "{}", answer.status);
    }
    for garbage in
        ["\0\0\0\0\r\n\r\n", "GET\r\n\r\n", "GET / HTTP/9.9\r\n\r\n", "\u{16}\u{3}\u{1}\u{2}\0\u{1}\0"]
    {
        let mut stream = viewer.connect();
        stream.write_all(garbage.as_bytes()).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        assert!([0, 400, 404, 505].contains(&Answer::read(&mut stream).status));
    }
    let id = fixture.id();
    for query in [
        "items?at=0",
        "items?slice=plan&at=0",
        "items?slice=plan&at=x&count=1",
        "document?at=99999999",
        "document?at=-1",
        "document?at=18446744073709551615",
        "records?chunk=18446744073709551615",
        "records?chunk=1",
        "diff?before=0",
        "diff?before=18446744073709551615&after=18446744073709551615",
        "messages?at=0&count=1",
        "live?last=0",
        "content?at=0&workspace=x",
    ] {
        let answer = viewer.get(&format!("session/{id}/{query}"));
        assert_eq!(answer.status, 400, "{query}: {}", answer.body);
        assert!(answer.body.contains("\"error\":"), "{query}");
    }
    let most = u64::MAX;
    for query in [
        format!("items?slice=plan&at=3&from={most}&count={most}"),
        format!("messages?evaluation=talk&at=3&from={most}&count={most}"),
        format!("search?q=x&from={most}&place={most}"),
        format!("filter?chunk={most}"),
    ] {
        let answer = viewer.get(&format!("session/{id}/{query}"));
        assert_eq!(answer.status, 200, "{query}: {}", answer.body);
    }
    assert_eq!(viewer.get("sessions?from=18446744073709551615").status, 200);
}

#[test]
fn clients_that_open_connections_and_say_nothing_hold_up_nobody_for_good() {
    let (_fixture, viewer) = viewer();
    // More than are answered at once, and fewer than the system lets wait.
    let silent: Vec<TcpStream> = (0..90).map(|_| viewer.connect()).collect();
    let mut begun: Vec<TcpStream> = (0..20).map(|_| viewer.connect()).collect();
    begun.iter_mut().for_each(|stream| stream.write_all(b"GET / HTTP/1.1\r\nX: ").unwrap());
    // They wait in the queue until the silent connections end.
    drop(silent);
    drop(begun);
    assert_eq!(viewer.get("sessions").status, 200);
}

#[test]
fn many_clients_are_answered_at_once() {
    let (fixture, viewer) = viewer();
    let path = format!("session/{}/step?at=5", fixture.id());
    let expected = viewer.get(&path).body;
    std::thread::scope(|scope| {
        let asked: Vec<_> = (0..40).map(|_| scope.spawn(|| viewer.get(&path))).collect();
        for answer in asked {
            let answer = answer.join().unwrap();
            assert_eq!((answer.status, answer.body), (200, expected.clone()));
        }
    });
}
