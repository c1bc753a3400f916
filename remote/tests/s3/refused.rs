//! Places that are none, or that refuse: each says what a person can correct, and nothing that the server said.

use foldlog::replication::ReplicaError;
use foldlog_remote::{Error, Failure, Variables, open_place_with, open_remote};
use uuid::Uuid;

use crate::between::{Act, Between, refusal};
use crate::server::{self, KEY_ID, SECRET};

const SESSION: Uuid = Uuid::from_u128(0x5eed);

/// What claiming a session comes to.
fn claim(url: &str, variables: &Variables) -> Error {
    let remote = open_remote(url, server::retries(), variables).unwrap();
    remote.claim(SESSION, "worker", |_| {}).unwrap_err()
}

fn failure(error: Error) -> Failure {
    match error {
        Error::Store { failure, .. } => failure,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_bucket_without_conditional_puts_is_refused_and_left_empty() {
    let Some(server) = server::bucket() else { return };
    let between = Between::before(&server.address, |_, _, _| Act::Unconditionally);
    assert_eq!(claim(&server.url(), &server::variables(&between.address)), Error::NoConditionalPuts);
    let place = open_place_with(&server.url(), server::retries(), &server.variables()).unwrap();
    assert!(place.sessions().unwrap().is_empty());
}

#[test]
fn a_bucket_that_is_not_there_is_no_empty_log() {
    let Some(server) = server::bucket() else { return };
    let url = format!("s3://{}-not/team", server.bucket);
    assert_eq!(failure(claim(&url, &server.variables())), Failure::Missing);
    let place = open_place_with(&url, server::retries(), &server.variables()).unwrap();
    assert_eq!(failure(place.standing(SESSION).unwrap_err()), Failure::Missing);
    assert_eq!(failure(place.sessions().unwrap_err()), Failure::Missing);
    let replicator = place.replicator("worker").unwrap();
    match replicator.read(SESSION, &mut |_| {}).unwrap_err() {
        ReplicaError::Failed { reason } => assert!(reason.contains("no such bucket"), "{reason}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_a_server_refuses_is_said_without_its_words() {
    let Some(server) = server::bucket() else { return };
    let quoted = format!("the key {KEY_ID} with {SECRET} at \u{1b}[2J");
    let said = [
        (403, "AccessDenied", Failure::Denied),
        (403, "SignatureDoesNotMatch", Failure::Denied),
        (403, "RequestTimeTooSkewed", Failure::ClockSkew),
        (400, "ExpiredToken", Failure::Denied),
        (301, "PermanentRedirect", Failure::Elsewhere),
        (307, "TemporaryRedirect", Failure::Elsewhere),
        (400, "AuthorizationHeaderMalformed", Failure::Elsewhere),
        (404, "NoSuchBucket", Failure::Missing),
        (503, "SlowDown", Failure::Unavailable),
        (507, "InsufficientStorage", Failure::Unavailable),
    ];
    for (status, code, expected) in said {
        let quoted = quoted.clone();
        // A bucket that may only be read refuses the puts alone.
        let between = Between::before(&server.address, move |method, _, _| match method {
            "PUT" => refusal(status, code, &quoted),
            _ => Act::Pass,
        });
        let error = claim(&server.url(), &server::variables(&between.address));
        let text = format!("{error} {error:?}");
        assert_eq!(failure(error), expected, "{code}");
        let words = [KEY_ID, SECRET, "\u{1b}", code];
        assert!(words.iter().all(|word| !text.contains(word)), "{text}");
    }
}

#[test]
fn a_server_that_is_gone_is_said_to_be() {
    let Some(server) = server::bucket() else { return };
    // Nobody listens there any more.
    let address = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let error = claim(&server.url(), &server::variables(&address));
    assert!(!format!("{error:?}").contains(SECRET));
    assert_eq!(failure(error), Failure::Unavailable);
}
