//! Follows a session that another worker writes: `LISTEN` triggers reads, and only the rows
//! determine the result.
//!
//! A notification only means that there may be new records. A lost one, because of a broken
//! connection or a killed writer, is compensated by regular polling. So a tail also works at a
//! standby, which sends no notifications, but with a delay.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use foldlog_codec::SequenceNumber;
use futures_lite::{Stream, StreamExt, future};
use tokio::sync::{Notify, mpsc};
use tokio::time;
use uuid::Uuid;

use super::Tables;
use super::connection::Listener;
use super::reader::{HeldRecord, Item, RowReader};
use crate::error::Result;
use crate::runtime::Runtime;

/// Statement that notifies channels.
pub(super) const NOTIFY: &str = "SELECT count(pg_notify(channel, '')) FROM unnest($1) AS channel, set_config('synchronous_commit', 'off', true)";

/// Interval of polling without notifications.
const LOOK_AGAIN: Duration = Duration::from_secs(2);

/// Number of pages of records that are read ahead of their consumer.
const AHEAD: usize = 2;

/// Returns the channel of a session.
pub(super) fn channel(session: Uuid) -> String {
    format!("foldlog_{}", session.simple())
}

/// Yields the records of a session, and waits for more: a [`Stream`] for any executor, or a
/// blocking iterator by [`wait`](Tail::wait). It ends after an error; dropping it ends its work.
#[derive(Debug)]
pub struct Tail {
    pages: mpsc::Receiver<Result<Vec<Item>>>,
    page: std::vec::IntoIter<Item>,
    _runtime: Runtime,
}

impl Tail {
    /// Returns the next record, and blocks until there is one. Returns `None` after an error.
    pub fn wait(&mut self) -> Option<Result<HeldRecord>> {
        future::block_on(self.next())
    }
}

impl Stream for Tail {
    type Item = Result<HeldRecord>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<HeldRecord>>> {
        loop {
            match self.page.next() {
                Some(Item::Record(record)) => return Poll::Ready(Some(Ok(record))),
                Some(Item::Claim { .. } | Item::Captures(_)) => continue,
                None => {}
            }
            match std::task::ready!(self.pages.poll_recv(context)) {
                Some(Ok(page)) => self.page = page.into_iter(),
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                None => return Poll::Ready(None),
            }
        }
    }
}

/// Starts to follow a session.
pub(super) fn start(
    runtime: &Runtime,
    tables: Arc<Tables>,
    session: Uuid,
    from: SequenceNumber,
) -> Result<Tail> {
    let (send, pages) = mpsc::channel(AHEAD);
    runtime.spawn(async move {
        let unwanted = async {
            send.closed().await;
            Ok(())
        };
        if let Err(error) = future::or(unwanted, follow(tables, session, from, &send)).await {
            // If this fails, the consumer no longer waits.
            let _ = send.send(Err(error)).await;
        }
    })?;
    Ok(Tail { pages, page: Vec::new().into_iter(), _runtime: runtime.clone() })
}

/// Reads on whenever there may be new records. Returns once the consumer has ended.
async fn follow(
    tables: Arc<Tables>,
    session: Uuid,
    from: SequenceNumber,
    sink: &mpsc::Sender<Result<Vec<Item>>>,
) -> Result<()> {
    let woken = Arc::new(Notify::new());
    let mut reader = RowReader::new(Arc::clone(&tables), session);
    let mut is_placed = false;
    let mut listener = None;
    loop {
        if listener.as_ref().is_none_or(Listener::is_closed) {
            // Without a listener, it polls.
            listener = listen(&tables, session, &woken).await;
        }
        if !is_placed {
            is_placed = reader.skip(from).await?;
        }
        // Later notifications wake the wait below.
        if is_placed && !reader.read_to_end(sink).await? {
            return Ok(());
        }
        let _ = time::timeout(LOOK_AGAIN, woken.notified()).await;
    }
}

async fn listen(tables: &Tables, session: Uuid, woken: &Arc<Notify>) -> Option<Listener> {
    let listener = tables.pool.listener(Arc::clone(woken)).await.ok()?;
    listener.listen(&channel(session)).await.ok()?;
    Some(listener)
}
