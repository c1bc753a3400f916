//! Shows the errors of places that do not exist or refuse. Each names the part that a person can
//! correct, with the server's status and code, and none of its other words.

use foldlog::replication::ReplicaError;
use foldlog_remote::{Error, PlaceEnvironment, RemoteFailure, open_place_with, open_remote};
use uuid::Uuid;

use crate::between::{Act, Between, refusal};
use crate::server::{self, KEY_ID, SECRET};

const SESSION: Uuid = Uuid::from_u128(0x5eed);

/// Returns the error of a claim.
fn claim(url: &str, variables: &PlaceEnvironment) -> Error {
    let remote = open_remote(url, server::retries(), variables).unwrap();
    remote.claim(SESSION, "worker", |_| {}).unwrap_err()
}

fn failure(error: Error) -> RemoteFailure {
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
    assert_eq!(failure(claim(&url, &server.variables())), RemoteFailure::Missing);
    let place = open_place_with(&url, server::retries(), &server.variables()).unwrap();
    assert_eq!(failure(place.read_standing(SESSION).unwrap_err()), RemoteFailure::Missing);
    assert_eq!(failure(place.sessions().unwrap_err()), RemoteFailure::Missing);
    let replicator = place.replicator("worker").unwrap();
    match replicator.read(SESSION, &mut |_| {}).unwrap_err() {
        ReplicaError::Failed { reason } => {
            assert!(reason.contains("the bucket or directory does not exist"), "{reason}");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_a_server_refuses_is_said_with_host_status_and_code_and_without_its_other_words() {
    let said = [
        (403, "AccessDenied", RemoteFailure::Denied),
        (403, "InvalidAccessKeyId", RemoteFailure::Denied),
        (403, "SignatureDoesNotMatch", RemoteFailure::Denied),
        (403, "RequestTimeTooSkewed", RemoteFailure::ClockSkew),
        (400, "ExpiredToken", RemoteFailure::Denied),
        (301, "PermanentRedirect", RemoteFailure::Elsewhere),
        (307, "TemporaryRedirect", RemoteFailure::Elsewhere),
        (400, "AuthorizationHeaderMalformed", RemoteFailure::Elsewhere),
        (404, "NoSuchBucket", RemoteFailure::Missing),
        (503, "SlowDown", RemoteFailure::Busy),
        (507, "InsufficientStorage", RemoteFailure::Unavailable),
    ];
    for (status, code, expected) in said {
        let quoted = format!("the key {KEY_ID} with {SECRET} at \u{1b}[2J");
        // A read-only bucket refuses only the puts.
        let between = Between::before("nobody", move |method, _, _| match method {
            "PUT" => refusal(status, code, &quoted),
            _ => refusal(404, "NoSuchKey", &quoted),
        });
        let error = claim("s3://agents/team", &server::variables(&between.address));
        let text = format!("{error} {error:?}");
        assert_eq!(failure(error), expected, "{code}");
        let answer = format!("(s3://agents/team at {}: HTTP {status} {code})", between.address);
        assert!(text.contains(&answer), "{text}");
        assert!([KEY_ID, SECRET, "\u{1b}"].iter().all(|word| !text.contains(word)), "{text}");
    }
}

/// Some servers return the sent text, or text that is no word, as their error code. Such codes are
/// not shown.
#[test]
fn what_stands_in_the_place_of_a_code_is_not_shown_if_it_was_sent_or_has_another_form() {
    for code in
        [KEY_ID, "AWS4", "Hunter\u{1b}[2J", "Hunter 2", "hunter2", &"Hunter".repeat(20), "UsEastHunter"]
    {
        let quoted = code.to_owned();
        let between = Between::before("nobody", move |_, _, _| refusal(403, &quoted, "no"));
        let mut variables = server::variables(&between.address);
        variables.insert("AWS_SESSION_TOKEN".to_owned(), "UsEastHunterToken".to_owned());
        let error = claim("s3://agents", &variables);
        let answer = format!("(s3://agents at {}: HTTP 403)", between.address);
        assert!(error.to_string().contains(&answer), "{error}");
        assert!(!format!("{error:?}").to_ascii_lowercase().contains("hunter"), "{error:?}");
    }
}

#[test]
fn a_server_that_is_gone_is_said_to_be() {
    // The listener is closed again.
    let address = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let error = claim("s3://agents/team", &server::variables(&address));
    assert!(!format!("{error:?}").contains(SECRET));
    let said = format!("the connection was refused: no server listens there (s3://agents/team at {address})");
    assert!(error.to_string().contains(&said), "{error}");
    assert_eq!(failure(error), RemoteFailure::Refused);
}
