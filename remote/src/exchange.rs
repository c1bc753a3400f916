//! Notes which host a request went to last, and what it answered.
//!
//! The crate `object_store` hands on texts, which quote keys and addresses, and of a request that is not answered in time nothing at all.
//! So [`network`](crate::network) notes both where it speaks HTTP, within the task that asks, and whoever asks reads them there.

use std::cell::RefCell;
use std::future::Future;

use tokio::task_local;

use crate::error::{RemoteFailure, ServerAnswer};

/// Is what the last request of a task came to.
#[derive(Clone, Debug, Default)]
pub(crate) struct Exchange {
    /// Host and port that were asked.
    pub(crate) host: Option<String>,
    /// What was answered, if that says why the request failed.
    pub(crate) answer: Option<ServerAnswer>,
    /// Why there was no connection, if there was none.
    pub(crate) failure: Option<RemoteFailure>,
}

task_local! {
    static LAST: RefCell<Exchange>;
}

/// Runs a request to a store, and returns with what it came to the last exchange that it took.
pub(crate) async fn track_exchange<T>(request: impl Future<Output = T>) -> (T, Exchange) {
    let followed = async {
        let answer = request.await;
        (answer, LAST.with(RefCell::take))
    };
    LAST.scope(RefCell::default(), followed).await
}

/// Notes what is known of the exchange that is under way, if anybody follows it.
#[cfg(feature = "network")]
pub(crate) fn note(exchange: Exchange) {
    let _ = LAST.try_with(|last| last.replace(exchange));
}
