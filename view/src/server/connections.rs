//! Accepts a bounded number of concurrent connections. Closes those that stall, or that wait while
//! new ones arrive.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, Sleep};

use super::places::{ConnectionLimiter, ConnectionPermit};

/// Maximum number of open connections. A new one replaces one without a request, or waits.
const CONNECTIONS_MAX: usize = 64;

/// Time for the head of a request to arrive, and the maximum idle time of a connection.
const HEAD_WAIT: Duration = Duration::from_secs(5);

/// Time after which a client that reads nothing of an answer is disconnected.
const WRITE_WAIT: Duration = Duration::from_secs(20);

/// Maximum size of a request's head and of a single write, in bytes.
const BUFFER_BYTES: usize = 32 << 10;

const HEADERS_MAX: usize = 64;

/// Delay after a failed accept, for example if the process has too many open files.
const ACCEPT_WAIT: Duration = Duration::from_millis(100);

/// Serves connections until the returned future is dropped.
pub(crate) async fn serve(listener: TcpListener, router: Router) {
    serve_with(HEAD_WAIT, listener, router).await;
}

/// Serves connections; `head_wait` is the maximum time that one may stay without a request.
async fn serve_with(head_wait: Duration, listener: TcpListener, router: Router) {
    let places = ConnectionLimiter::new(CONNECTIONS_MAX);
    loop {
        let accepted: io::Result<(TcpStream, SocketAddr)> = listener.accept().await;
        let Ok((stream, _)) = accepted else {
            tokio::time::sleep(ACCEPT_WAIT).await;
            continue;
        };
        let Some(place) = places.take().await else { return };
        let router = TowerToHyperService::new(router.clone());
        tokio::spawn(async move {
            let io = TokioIo::new(TimeoutStream::new(stream, Arc::clone(&place)));
            let answering = Arc::clone(&place);
            let service = service_fn(move |request| {
                answering.answers();
                let (place, answer) = (Arc::clone(&answering), router.call(request));
                async move {
                    let answer = answer.await;
                    place.note_answered();
                    answer
                }
            });
            let connection = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(head_wait)
                .max_buf_size(BUFFER_BYTES)
                .max_headers(HEADERS_MAX)
                .serve_connection(io, service);
            // A client's error ends its own connection only.
            tokio::select! {
                _ = connection => {}
                () = place.given_up() => {}
            }
        });
    }
}

/// A connection that fails if its client reads nothing of the output for too long.
#[derive(Debug)]
struct TimeoutStream {
    stream: TcpStream,
    place: Arc<ConnectionPermit>,
    /// Runs while a write is pending.
    wait: Option<Pin<Box<Sleep>>>,
}

impl TimeoutStream {
    fn new(stream: TcpStream, place: Arc<ConnectionPermit>) -> TimeoutStream {
        TimeoutStream { stream, place, wait: None }
    }

    fn watch<T>(&mut self, context: &mut Context<'_>, polled: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if polled.is_ready() {
            self.wait = None;
            return polled;
        }
        let wait =
            self.wait.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(Instant::now() + WRITE_WAIT)));
        match wait.as_mut().poll(context) {
            Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl AsyncRead for TimeoutStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for TimeoutStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.watch(context, polled)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_flush(context);
        if polled.is_ready() {
            self.place.note_flushed();
        }
        self.watch(context, polled)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_shutdown(context);
        self.watch(context, polled)
    }
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use axum::http::Response;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    /// Size of an answer in bytes that no connection buffers.
    const ANSWER_BYTES: usize = 256 << 20;

    /// Sends a request to a server whose clock advances while it is idle. Returns how many bytes of
    /// the answer arrive if the client starts reading only after `wait`.
    fn answered_after(wait: Duration) -> usize {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
            let address = listener.local_addr().unwrap();
            let answer = || async { Response::new(Body::from(vec![0_u8; ANSWER_BYTES])) };
            let serving = tokio::spawn(serve(listener, Router::new().fallback(answer)));
            let mut client = TcpStream::connect(address).await.unwrap();
            client.write_all(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await.unwrap();
            tokio::time::sleep(wait).await;
            // On a busy machine, both ends may be idle for a moment; the clock must not advance
            // then.
            tokio::time::resume();
            let (mut buffer, mut read) = (vec![0; 1 << 20], 0);
            while let Ok(bytes @ 1..) = client.read(&mut buffer).await {
                read += bytes;
            }
            serving.abort();
            read
        })
    }

    const WHOLE: &[u8] = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n";
    const HALF: &[u8] = b"GET / HTTP/1.1\r\nHost: x\r\n";
    const REST: &[u8] = b"Connection: close\r\n\r\n";

    /// Reads one answer; `None` if the connection ends before.
    async fn answer_of(client: &mut TcpStream) -> Option<()> {
        let mut text = Vec::new();
        while !text.ends_with(b"answered") {
            let mut byte = [0];
            client.read_exact(&mut byte).await.ok()?;
            text.extend(byte);
        }
        Some(())
    }

    /// Sends a request to a server without timeouts while `count` other clients have sent half a
    /// request, every second of them after a whole one. Returns how many of these receive an answer
    /// when they send the rest.
    fn kept_beside_one_more_than(count: usize) -> usize {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
            let address = listener.local_addr().unwrap();
            let router = Router::new().fallback(|| async { Response::new(Body::from("answered")) });
            let serving = tokio::spawn(serve_with(Duration::from_secs(1 << 30), listener, router));
            let mut others = Vec::new();
            for nth in 0..count {
                let mut other = TcpStream::connect(address).await.unwrap();
                if nth % 2 == 1 {
                    other.write_all(WHOLE).await.unwrap();
                    answer_of(&mut other).await.expect("a whole request is answered");
                }
                other.write_all(HALF).await.unwrap();
                others.push(other);
            }
            let mut client = TcpStream::connect(address).await.unwrap();
            client.write_all(WHOLE).await.unwrap();
            answer_of(&mut client).await.expect("a whole request is answered");
            drop(client);
            let mut there = 0;
            for other in &mut others {
                let sent = other.write_all(REST).await.is_ok();
                there += usize::from(sent && answer_of(other).await.is_some());
            }
            serving.abort();
            there
        })
    }

    #[test]
    fn half_requests_keep_nobody_out_and_only_as_many_are_cut_as_must_be() {
        for count in [10, CONNECTIONS_MAX, 3 * CONNECTIONS_MAX] {
            assert_eq!(kept_beside_one_more_than(count), count.min(CONNECTIONS_MAX - 1), "beside {count}");
        }
    }

    #[test]
    fn a_client_that_takes_nothing_of_its_answer_is_cut() {
        assert!(answered_after(WRITE_WAIT * 2) < ANSWER_BYTES);
        assert!(answered_after(WRITE_WAIT / 2) > ANSWER_BYTES, "who pauses for less is answered");
    }
}
