//! Routes paths to answers.
//!
//! | path after the token | answer |
//! |---|---|
//! | `` | the page of the store, or of the one session |
//! | `pages/NAME` | a file of the pages |
//! | `sessions?from=N` | rows of the store |
//! | `session/ID/` | the page of a session |
//! | `session/ID/live?last=N&epoch=N` | waits until the session differs from the page's state, at most [`LIVE_WAIT`] |
//! | `session/ID/operations`, `integrity`, `statistics` | the contents of the report's blocks with these names |
//! | `session/ID/compare?with=ID&here=N&there=N` | the session compared with another one of the store ([`compare`]) |
//! | `session/ID/NAME?…` | the answer of [`answers`] |

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header::{CONNECTION, CONTENT_TYPE, LOCATION};
use axum::http::{HeaderValue, Method, Response, StatusCode};
use axum::response::IntoResponse;
use foldlog::Error;
use serde_json::json;
use tokio::time::Instant;

use super::query::Query;
use super::security::{Gate, guard};
use super::session::Session;
use super::sessions::{SessionLocation, Sessions};
use super::{answers, compare, files};
use crate::Result;
use crate::documents::stats::stats;
use crate::report;

/// Time after which a page that waits for news is answered that there are none.
const LIVE_WAIT: Duration = Duration::from_secs(20);

/// Minimum and (`LOOK_MAX`) maximum delay between two checks of a log. The delay doubles after each
/// check without news.
const LOOK_MIN: Duration = Duration::from_millis(50);
const LOOK_MAX: Duration = Duration::from_millis(200);

const JSON: &str = "application/json; charset=utf-8";
const HTML: &str = "text/html; charset=utf-8";

#[derive(Clone, Debug)]
struct ServerState {
    gate: Arc<Gate>,
    sessions: Arc<Sessions>,
}

/// Creates the router for the requests that pass the gate.
pub(crate) fn router(gate: Gate, sessions: Arc<Sessions>) -> Router {
    Router::new().fallback(respond).with_state(ServerState { gate: Arc::new(gate), sessions })
}

async fn respond(State(serving): State<ServerState>, request: Request) -> Result<Response<Body>, Infallible> {
    let (parts, body) = request.into_parts();
    // The body is dropped unread. If the request has one, the connection ends as well.
    drop(body);
    let mut response = match serving.gate.path(&parts) {
        Err(status) => refusal_response(status),
        Ok(path) => {
            let query = Query::read(parts.uri.query().unwrap_or_default());
            serving.answer(path, query).await
        }
    };
    guard(response.headers_mut());
    if parts.method == Method::HEAD {
        *response.body_mut() = Body::empty();
    }
    Ok(response)
}

/// Returns an answer without details, after which the connection ends.
fn refusal_response(status: StatusCode) -> Response<Body> {
    let mut response = (status, [(CONTENT_TYPE, "text/plain; charset=utf-8")], "").into_response();
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    if status == StatusCode::METHOD_NOT_ALLOWED {
        response.headers_mut().insert("allow", HeaderValue::from_static("GET, HEAD"));
    }
    response
}

fn with_type(kind: &'static str, body: impl Into<Body>) -> Response<Body> {
    ([(CONTENT_TYPE, kind)], body.into()).into_response()
}

fn not_found() -> Response<Body> {
    (StatusCode::NOT_FOUND, [(CONTENT_TYPE, JSON)], "{\"error\":\"there is no such page or document\"}")
        .into_response()
}

impl ServerState {
    async fn answer(self, path: &str, query: Query) -> Response<Body> {
        let parts: Vec<&str> = path.split('/').collect();
        match parts.as_slice() {
            [""] => match self.sessions.only() {
                None => with_type(HTML, files::STORE_PAGE),
                Some(id) => {
                    let to = HeaderValue::try_from(format!("session/{id}/"));
                    to.map_or_else(
                        |_| not_found(),
                        |to| (StatusCode::FOUND, [(LOCATION, to)]).into_response(),
                    )
                }
            },
            ["pages", name] => {
                files::find(name).map_or_else(not_found, |(kind, text)| with_type(kind, text.into_owned()))
            }
            ["sessions"] => self.rows(query).await,
            ["session", id, name] => match self.sessions.locate(id) {
                None => not_found(),
                Some(_) if name.is_empty() => {
                    with_type(HTML, files::session_page(self.sessions.only().is_none()))
                }
                Some(session) if *name == "live" => self.live(session, query).await,
                Some(session) => self.of_session(session, (*name).to_owned(), query).await,
            },
            _ => not_found(),
        }
    }

    async fn rows(self, query: Query) -> Response<Body> {
        let answered = read(move || {
            let from = query.number("from")?.unwrap_or(0);
            let rows = self.sessions.rows(usize::try_from(from).unwrap_or(usize::MAX))?;
            rows.as_ref().map(answers::text).transpose()
        });
        json_response(answered.await)
    }

    async fn of_session(self, session: SessionLocation, name: String, query: Query) -> Response<Body> {
        let answered = read(move || {
            // These scan the whole log; they run without the session's lock, so that other requests
            // are not blocked.
            let log = |of: &SessionLocation| self.sessions.with(of, |session| Ok(Arc::clone(&session.log)));
            match name.as_str() {
                "operations" => {
                    let log = log(&session)?;
                    answers::text(&report::operations(&log.reader, Session::payloads())?).map(Some)
                }
                "compare" => {
                    let other = query.text("with").and_then(|id| self.sessions.locate(id));
                    let Some(other) = other else { return Ok(None) };
                    let (other, here) = (log(&other)?, log(&session)?);
                    let (at, other_at) = (query.number("here")?, query.number("there")?);
                    compare::compare(&here, at, &other, other_at).map(Some)
                }
                "statistics" => answers::text(&stats(&log(&session)?.reader)?).map(Some),
                "integrity" => {
                    let log = log(&session)?;
                    answers::text(&report::integrity(&log.reader, self.sessions.memory_bytes)?).map(Some)
                }
                name => self.sessions.with(&session, |session| answers::answer(session, name, &query)),
            }
        });
        json_response(answered.await)
    }

    /// Answers when the session differs from the state that the page knows.
    async fn live(self, session: SessionLocation, query: Query) -> Response<Body> {
        let end = Instant::now() + LIVE_WAIT;
        let (session, sessions, query) = (Arc::new(session), self.sessions, Arc::new(query));
        let mut wait = LOOK_MIN;
        loop {
            let (session, sessions, query) =
                (Arc::clone(&session), Arc::clone(&sessions), Arc::clone(&query));
            let is_over = Instant::now() >= end;
            let looked = read(move || {
                sessions.with(&session, |session| {
                    let known = (query.require_number("last")?, query.require_number("epoch")?);
                    let can_grow = session.look()?;
                    let now = (session.log.reader.last_position().get(), session.epoch);
                    let is_news = now != known || is_over || !can_grow;
                    let news = json!({ "last": now.0, "epoch": now.1, "ended": !can_grow });
                    is_news.then(|| answers::text(&news)).transpose()
                })
            });
            match looked.await {
                Ok(None) => {}
                answered => return json_response(answered),
            }
            tokio::time::sleep(wait).await;
            wait = (wait * 2).min(LOOK_MAX);
        }
    }
}

/// Reads logs on a thread that may block.
async fn read<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|_| Err(crate::Error::usage("the server failed to answer", "report this error")))
}

/// Returns an answer as JSON, for errors too.
fn json_response(answered: Result<Option<String>>) -> Response<Body> {
    let failure = match answered {
        Ok(Some(text)) => return with_type(JSON, text),
        Ok(None) => return not_found(),
        Err(failure) => failure,
    };
    let status = match &failure {
        crate::Error::Deleted { .. } | crate::Error::Engine(Error::NotASession { .. }) => StatusCode::GONE,
        crate::Error::Usage { .. } => StatusCode::BAD_REQUEST,
        failure if failure.is_over_budget() => StatusCode::SERVICE_UNAVAILABLE,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    };
    let told = answers::text(&json!({ "error": failure.to_string(), "next": failure.next() }));
    let mut response = with_type(JSON, told.unwrap_or_else(|_| "{}".to_owned()));
    *response.status_mut() = status;
    response
}
