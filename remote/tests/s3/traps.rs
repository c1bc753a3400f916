//! Shows failures between a writer and the server, at exactly the critical request.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use foldlog_codec::{Record, RecordKind};
use foldlog_remote::{Error, Remote, RemoteFailure, RemoteWriter, open_remote};
use uuid::Uuid;

use crate::between::{Act, Between, refusal};
use crate::server::{self, Server};

const SESSION: Uuid = Uuid::from_u128(0x5eed);

/// End of the path of the first chunk after the claim.
const CHUNK: &str = "/log/00000000000000000001";

fn record(sequence: u64, body: &[u8]) -> Record<'_> {
    Record { sequence: sequence.into(), kind: RecordKind::Observed, time_us: 0, body }
}

/// A remote whose requests pass `rule`.
fn remote(
    server: &Server,
    rule: impl Fn(&str, &str, usize) -> Act + Send + Sync + 'static,
) -> (Between, Remote) {
    let between = Between::before(&server.address, rule);
    let remote = open_remote(&server.url(), server::retries(), &server::variables(&between.address)).unwrap();
    (between, remote)
}

/// Returns the records that the server itself contains.
fn held(server: &Server) -> Vec<Vec<u8>> {
    let remote = open_remote(&server.url(), server::retries(), &server.variables()).unwrap();
    let mut bodies = Vec::new();
    remote.read(SESSION, |chunk| bodies.extend(chunk.records().map(|record| record.body.to_vec()))).unwrap();
    bodies
}

fn claimed(remote: &Remote) -> RemoteWriter {
    remote.claim(SESSION, "worker", |_| {}).unwrap()
}

#[test]
fn a_put_whose_answer_is_lost_is_found_and_not_put_again() {
    let Some(server) = server::bucket() else { return };
    let (between, remote) = remote(&server, |method, path, before| match method {
        "PUT" if path.ends_with(CHUNK) && before == 0 => Act::LoseAnswer,
        _ => Act::Pass,
    });
    assert_eq!(claimed(&remote).append([record(0, b"once")]).unwrap(), 1);
    assert_eq!(between.count("PUT", CHUNK), 1, "nobody below the protocol puts it again");
    assert_eq!(held(&server), [b"once"]);
}

#[test]
fn a_conflict_means_try_again_and_fences_nobody() {
    let Some(server) = server::bucket() else { return };
    let (between, remote) = remote(&server, |method, path, before| match (method, before) {
        ("PUT", 0) if path.ends_with(CHUNK) => refusal(409, "ConditionalRequestConflict", "try again"),
        ("PUT", 1) if path.ends_with(CHUNK) => refusal(503, "SlowDown", "reduce your request rate"),
        _ => Act::Pass,
    });
    assert_eq!(claimed(&remote).append([record(0, b"third time")]).unwrap(), 1);
    assert_eq!(between.count("PUT", CHUNK), 3);
    assert_eq!(held(&server), [b"third time"]);
}

#[test]
fn credentials_that_expire_in_the_middle_lose_nothing() {
    let Some(server) = server::bucket() else { return };
    let expired = Arc::new(AtomicBool::new(false));
    let are_expired = Arc::clone(&expired);
    let (_between, remote) = remote(&server, move |_, _, _| match are_expired.load(Ordering::SeqCst) {
        true => refusal(400, "ExpiredToken", "The provided token has expired."),
        false => Act::Pass,
    });
    let mut writer = claimed(&remote);
    expired.store(true, Ordering::SeqCst);
    let error = writer.append([record(0, b"kept")]).unwrap_err();
    assert!(
        matches!(&error, Error::Unknown { next, failure: RemoteFailure::Denied, .. } if next.get() == 1),
        "{error}"
    );
    expired.store(false, Ordering::SeqCst);
    assert_eq!(writer.append([]).unwrap(), 1);
    assert_eq!(writer.append([record(1, b"went on")]).unwrap(), 2);
    assert_eq!(held(&server), [b"kept".to_vec(), b"went on".to_vec()]);
}

#[test]
fn a_claim_behind_a_paused_writer_fences_it() {
    let Some(server) = server::bucket() else { return };
    let (_between, remote) = remote(&server, |_, _, _| Act::Pass);
    let mut paused = claimed(&remote);
    paused.append([record(0, b"before")]).unwrap();
    let mut other = claimed(&remote);
    assert!(matches!(paused.append([record(1, b"too late")]), Err(Error::Fenced { .. })));
    assert_eq!(other.append([record(1, b"behind")]).unwrap(), 2);
    assert_eq!(held(&server), [b"before".to_vec(), b"behind".to_vec()]);
}
