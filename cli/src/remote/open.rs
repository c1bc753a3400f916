//! Opens a place, and reports failures of that or of a request.

use std::sync::Arc;
use std::time::Duration;

use foldlog_remote::{Error, FailureDetails, Place, Retries, ServerAnswer, SqlState, open_place};
use uuid::Uuid;

use super::{HeldSession, redact_url};
use crate::failure::{CommandError, Result};

/// Time limit for a place that does not answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// Opens the place that a URL names.
///
/// # Errors
///
/// [`Error::Usage`](foldlog_view::Error::Usage) if the URL names no place, or none that this
/// program supports.
pub(crate) fn place(url: &str) -> Result<Arc<dyn Place>> {
    open_place(url, Retries { within: PATIENCE, ..Retries::default() }).map_err(failure)
}

/// A place, with its sessions.
type PlaceWithSessions = (Arc<dyn Place>, Vec<HeldSession>);

/// Opens the place that a URL names. Returns it with the session of the URL, or with all sessions
/// that the place lists.
///
/// # Errors
///
/// [`Error::Usage`](foldlog_view::Error::Usage) if the place cannot be opened or listed.
pub(crate) fn sessions_at(url: &str) -> Result<PlaceWithSessions> {
    if let Some(one) = HeldSession::parse(url) {
        return Ok((place(&one.url)?, vec![one]));
    }
    let place = place(url)?;
    let ids = place.sessions().map_err(failure)?;
    let held = ids.into_iter().map(|session| HeldSession { url: url.to_owned(), session });
    Ok((place, held.collect()))
}

pub(crate) const NO_SESSION: &str = "there are no sessions at this URL";

pub(crate) const WHERE: &str = "give the URL of the host's replicator, with its prefix";

/// Opens a place like [`sessions_at`], and fails if it lists no sessions.
pub(crate) fn some_sessions_at(url: &str) -> Result<PlaceWithSessions> {
    match sessions_at(url)? {
        (_, sessions) if sessions.is_empty() => Err(CommandError::usage(NO_SESSION, WHERE)),
        found => Ok(found),
    }
}

/// Error: a place does not contain a session.
pub(crate) fn nothing_held(session: Uuid) -> CommandError {
    let what = format!("there is no session {session} at this URL");
    CommandError::usage(what, "`foldlog sessions URL` lists the sessions there")
}

/// Error: a URL names a place, but a session is required.
pub(crate) fn no_session(url: &str) -> CommandError {
    let what = format!("{} names no session", redact_url(url));
    CommandError::usage(
        what,
        "give URL/sessions/ID (before a `?`), or the URL and the id; `foldlog sessions URL` lists the ids",
    )
}

/// Converts a failed request to a place into an error with the next step.
pub(crate) fn failure(error: Error) -> CommandError {
    let next = match error {
        Error::NotBuiltIn { .. } => {
            "build foldlog with support for it: `cargo install --path cli --features s3` (or gcs, azure, postgres)"
        }
        Error::Url { .. } => {
            "give a URL with the prefix of the sessions, as `foldlog help pull` explains, and without keys: these come from the environment"
        }
        Error::Settings { .. } => "correct the environment variables; `foldlog help pull` names some",
        Error::Store { failure, ref details, .. } => after(failure, details),
        Error::NewerFormat { .. } | Error::NewerTables { .. } => {
            "read the session with a newer version of foldlog"
        }
        Error::Damaged { .. }
        | Error::Broken { .. }
        | Error::Malformed { .. }
        | Error::NotOurs { .. }
        | Error::RemoteWentBack { .. }
        | Error::Missing { .. }
        | Error::Volume { .. }
        | Error::Row { .. }
        | Error::DatabaseWentBack { .. }
        | Error::Payload { .. } => return CommandError::Held(error.to_string()),
        _ => "check the URL, and the network connection to its host",
    };
    CommandError::usage(error.to_string(), next)
}

/// Returns the next step after a failure of a store.
fn after(failure: foldlog_remote::RemoteFailure, details: &FailureDetails) -> &'static str {
    use foldlog_remote::RemoteFailure::{
        Busy, ClockSkew, Denied, Elsewhere, Full, Missing, NoCredentials, NoDatabase, NoRight, NoTls,
        NotAFile, Password, ReadOnly, Refused, TimedOut, Unresolved, Untrusted,
    };
    let is_database = details.place.as_ref().is_some_and(|place| place.starts_with("PostgreSQL"));
    match failure {
        Denied => after_denial(details),
        NoCredentials => {
            "set the keys in the environment, such as AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        }
        Elsewhere => "set AWS_REGION or AWS_ENDPOINT_URL to the location of the bucket",
        Missing => "check the name of the bucket, and the endpoint",
        NotAFile => "remove pipes and directories that are in the place of files in the bucket's directory",
        ClockSkew => "set the clock of this machine",
        Password => "check the user in the URL, and PGPASSWORD or ~/.pgpass, which only its owner may read",
        NoDatabase => "check the database in the URL, or create it",
        NoRight => "grant the user CONNECT on the database, and its own schema or CREATE",
        ReadOnly => {
            "give the server that accepts writes, or several hosts with target_session_attrs=read-write"
        }
        Full => "free disk space on the server",
        Refused if is_database => "start the server, or check the host and the port in the URL",
        Refused => "start the server, or check the host and the port in AWS_ENDPOINT_URL",
        Unresolved if is_database => "check the host in the URL, and this machine's name servers",
        Unresolved => {
            "check AWS_ENDPOINT_URL, or AWS_REGION, which determines the host's name, and this machine's name servers"
        }
        Untrusted if is_database => {
            "give the file of the certificate authority as sslrootcert=PATH, or the host that the certificate names"
        }
        Untrusted => {
            "add the certificate authority to those that this machine trusts, or give the host that the certificate names as AWS_ENDPOINT_URL"
        }
        NoTls if is_database => {
            "enable TLS on the server; or, if the network is trusted, give sslmode=disable"
        }
        NoTls => {
            "give an endpoint that supports TLS; or, if the network is trusted, one that starts with http://"
        }
        Busy if matches!(
            details.answer,
            Some(ServerAnswer::Sql { state: SqlState([b'5', b'3', ..]), .. })
        ) =>
        {
            "close other connections to the server, or raise its max_connections"
        }
        Busy => "try again later",
        TimedOut => {
            "check the network connection to the host, such as a firewall that drops packets; or try again later"
        }
        _ => "check the URL, and the network connection to its host",
    }
}

/// Returns the next step after a store denied access with these credentials.
fn after_denial(details: &FailureDetails) -> &'static str {
    let Some(ServerAnswer::Http { code: Some(code), .. }) = &details.answer else { return CHECK_KEYS };
    match code.as_str() {
        "InvalidAccessKeyId" => "check AWS_ACCESS_KEY_ID: the service knows no key with this id",
        "SignatureDoesNotMatch" => "check AWS_SECRET_ACCESS_KEY: it does not belong to that key",
        "ExpiredToken" | "InvalidToken" => {
            "get new keys, and set all three: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN"
        }
        _ => CHECK_KEYS,
    }
}

const CHECK_KEYS: &str =
    "check the keys in the environment, and that they may list, read and put objects under the prefix";
