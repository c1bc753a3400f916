//! Records the host of the last request, and its answer.
//!
//! The crate `object_store` returns texts that quote keys and addresses, and nothing at all for a
//! request without an answer in time. So [`network`](super::network) notes host and answer at the
//! HTTP level, within the current task, from where the caller reads them.

use std::cell::RefCell;
use std::future::Future;

use tokio::task_local;

use crate::error::{RemoteFailure, ServerAnswer};

/// The last exchange of a task.
#[derive(Clone, Debug, Default)]
pub(crate) struct Exchange {
    /// Host and port of the request.
    pub(crate) host: Option<String>,
    /// The answer, if it explains why the request failed.
    pub(crate) answer: Option<ServerAnswer>,
    /// Why there was no connection, if there was none.
    pub(crate) failure: Option<RemoteFailure>,
}

task_local! {
    static LAST: RefCell<Exchange>;
}

/// Runs a request to a store, and returns its result with the last exchange.
pub(crate) async fn track_exchange<T>(request: impl Future<Output = T>) -> (T, Exchange) {
    let followed = async {
        let answer = request.await;
        (answer, LAST.with(RefCell::take))
    };
    LAST.scope(RefCell::default(), followed).await
}

/// Records the details of the current exchange, if it is tracked.
#[cfg(feature = "network")]
pub(crate) fn note(exchange: Exchange) {
    let _ = LAST.try_with(|last| last.replace(exchange));
}
