//! Sessions that are read from a place: a verb whose [`Urls`](crate::command::Urls) allow it
//! accepts `URL/sessions/ID` instead of a directory. Of the verbs that only read, `view` and
//! `pending` do not.
//!
//! `sessions` and `tail` read the place's records as they arrive (`verbs/sessions/remote.rs`,
//! `verbs/tail/remote.rs`). `verify` checks every session of a place, each in a temporary copy. The
//! other verbs need random access to a log, so they receive a copy of that one session. The copy is
//! in a directory that only this user can read, and it is removed when the verb ends, also by a
//! signal. (If a SIGKILL leaves a temporary directory, the next reader removes it.) None of these
//! verbs claims a session or writes into a place. Only `gc`, which accepts the URL of a place too,
//! removes redundant copies from it; `push` and `takeover` are in `verbs/replica`.
//!
//! All this needs the feature `object-store`. Without it, a URL is refused with the command that
//! builds it in.

#[cfg(feature = "object-store")]
mod collect;
#[cfg(feature = "object-store")]
mod copy;
#[cfg(feature = "object-store")]
mod open;
#[cfg(feature = "object-store")]
mod rename;
#[cfg(feature = "object-store")]
mod temporary;

use std::ffi::OsString;
use std::path::Path;

use uuid::Uuid;

#[cfg(feature = "object-store")]
pub(crate) use {
    collect::collect,
    copy::{with_copy, with_each_copy},
    open::{NO_SESSION, WHERE, failure, no_session, nothing_held, place, sessions_at, some_sessions_at},
};

/// Returns the URL in place of a path, if it is one. Any text with a scheme counts, even one that
/// names no place, since the error for a URL quotes no password.
pub(crate) fn url(path: &Path) -> Option<&str> {
    let is_scheme = |scheme: &str| {
        scheme.len() > 1
            && scheme.chars().all(|letter| letter.is_ascii_alphanumeric() || "+-.".contains(letter))
    };
    path.to_str()
        .filter(|text| text.trim_start().split_once("://").is_some_and(|(scheme, _)| is_scheme(scheme)))
}

/// Returns a URL in printable form: without user, password and parameters.
fn redact_url(url: &str) -> String {
    let end = url.find(['?', '#']).unwrap_or(url.len());
    let (scheme, rest) = url.get(..end).and_then(|url| url.split_once("://")).unwrap_or(("", url));
    let place = rest.rsplit_once('@').map_or(rest, |(_, place)| place);
    foldlog_codec::escape::text(&format!("{}://{place}", scheme.trim_start())).to_string()
}

/// Names a session in a place: the place's URL, and the session's id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HeldSession {
    pub(crate) url: String,
    pub(crate) session: Uuid,
}

impl HeldSession {
    /// Parses `URL/sessions/ID`, optionally followed by a database's parameters; `None` if the path
    /// does not end in an id.
    pub(crate) fn parse(url: &str) -> Option<HeldSession> {
        let (path, parameters) = url.split_at(url.find('?').unwrap_or(url.len()));
        let (before, id) = path.trim_end_matches('/').rsplit_once('/')?;
        let session = Uuid::try_parse(id).ok()?;
        let place = before.strip_suffix("/sessions").unwrap_or(before);
        Some(HeldSession { url: format!("{place}{parameters}"), session })
    }
}

impl std::fmt::Display for HeldSession {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (path, parameters) = self.url.split_at(self.url.find('?').unwrap_or(self.url.len()));
        write!(f, "{}/sessions/{}{parameters}", path.trim_end_matches('/'), self.session)
    }
}

/// Joins the two words `URL ID` of a command line to the one word that names a session in a place.
pub(crate) fn join_session_url(arguments: Vec<OsString>) -> Vec<OsString> {
    let mut joined: Vec<OsString> = Vec::with_capacity(arguments.len());
    for argument in arguments {
        let session = argument.to_str().and_then(|word| Uuid::try_parse(word).ok());
        let place = joined.last().and_then(|last| url(Path::new(last)));
        let named = match (place, session) {
            (Some(url), Some(session)) if HeldSession::parse(url).is_none() => {
                HeldSession { url: url.trim_end_matches('/').to_owned(), session }
            }
            _ => {
                joined.push(argument);
                continue;
            }
        };
        joined.pop();
        joined.push(named.to_string().into());
    }
    joined
}

/// Error: a verb writes, but places are read-only.
pub(crate) fn not_written(url: &str) -> crate::CommandError {
    let what = format!("{} is a URL, and this command needs a directory", redact_url(url));
    let next = "copy the session by `foldlog pull URL --to STORE`; to write into it, take it over by `foldlog takeover URL --to STORE --by WHO --reason WHY`";
    crate::CommandError::usage(what, next)
}

/// Error: the program was built without support for places.
#[cfg(not(feature = "object-store"))]
pub(crate) fn not_built() -> crate::CommandError {
    crate::CommandError::usage(
        "this program was built without support for buckets and databases",
        "build it with support: `cargo install --path cli --features object-store`, or `--features s3`, `gcs`, `azure` or `postgres`",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "014417e2-088b-4e39-825e-7d031e0f8187";

    #[test]
    fn a_url_is_printed_without_what_may_be_a_password() {
        for url in [
            "postgres://adv:hunter2@h/db",
            " Postgres://adv:hunter2@h/db?password=hunter2",
            "s3://k:hunter2@h/db#hunter2",
            "https://k:p@hunter2@h/db",
        ] {
            let text = format!("{} {}", redact_url(super::url(Path::new(url)).unwrap()), not_written(url));
            assert!(text.contains("h/db") && !text.contains("hunter2"), "{text}");
        }
        assert_eq!(super::url(Path::new("/work/c:/x")), None);
    }

    #[test]
    fn a_url_and_an_id_are_a_session_in_one_word_or_in_two() {
        let words = |words: &str| join_session_url(words.split(' ').map(OsString::from).collect());
        let whole = format!("show s3://bucket/team/sessions/{ID} --json");
        for words_of in [format!("show s3://bucket/team {ID} --json"), whole.clone()] {
            assert_eq!(words(&words_of).join(" ".as_ref()), *whole);
        }
        assert_eq!(words(&format!("show STORE {ID}")).len(), 3, "a directory is none");
        for url in [format!("s3://bucket/team/sessions/{ID}"), format!("s3://bucket/team/{ID}/")] {
            let session = HeldSession::parse(&url).map(|held| held.url);
            assert_eq!(session.as_deref(), Some("s3://bucket/team"));
        }
        let database = "postgres://u@/db?host=/run&schema=x";
        let named = words(&format!("show {database} {ID}"));
        assert_eq!(
            named.join(" ".as_ref()),
            *format!("show postgres://u@/db/sessions/{ID}?host=/run&schema=x")
        );
        let held =
            HeldSession::parse(&named[1].to_string_lossy()).map(|held| (held.url, held.session.to_string()));
        assert_eq!(held, Some((database.to_owned(), ID.to_owned())));
        assert_eq!(HeldSession::parse("s3://bucket/team"), None);
        assert!(url(Path::new("s3:/bucket")).is_none() && url(Path::new("file:///x")).is_some());
    }
}
