//! State shared by the client's threads: the program's input, requests that wait for their answer,
//! and events that wait for the host.
//!
//! A separate thread writes, so that neither the host nor the reading thread waits for a program
//! that does not read.

use std::collections::{HashMap, VecDeque};
use std::io::{self, Write};
use std::process::ChildStdin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread;
use std::time::Instant;

use parking_lot::{Condvar, Mutex, MutexGuard};
use serde_json::{Map, Value, json};
use uuid::Uuid;

use super::error::{ClientError, ErrorKind, Stage};
use super::message::ClaudeMessage;
use super::server::{ProgramRequest, RequestResponder};
use super::stream::Frame;

/// Answer of the program to a control request: its contents, or the text of its error.
pub(super) type Reply = Result<Value, String>;

/// Contains the state shared by the client's threads.
pub(super) struct Channel {
    writer: StdinWriter,
    requests: Mutex<Requests>,
    next_request: AtomicU64,
    pub(super) inbox: Inbox,
}

/// Contains the control requests that the program has not answered.
#[derive(Default)]
struct Requests {
    replies: HashMap<String, SyncSender<Reply>>,
    /// Whether the program's output has ended, so that no more answers can arrive.
    is_over: bool,
}

impl Channel {
    pub(super) fn new(stdin: ChildStdin, unread_limit: usize) -> io::Result<Channel> {
        Ok(Channel {
            writer: StdinWriter::start(stdin)?,
            requests: Mutex::default(),
            next_request: AtomicU64::new(1),
            inbox: Inbox::new(unread_limit),
        })
    }

    /// Passes a line to the writing thread.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Closed`] after [`close_input`](Channel::close_input),
    /// [`ErrorKind::Disconnected`] if the program no longer reads.
    pub(super) fn send(&self, line: &Value) -> Result<(), ClientError> {
        self.writer.send(line)
    }

    /// Closes the program's input after the queued lines are written.
    pub(super) fn close_input(&self) {
        self.writer.close();
    }

    /// Sends a control request. The receiver gets the answer, or is disconnected when the program's
    /// output ends.
    pub(super) fn request(&self, request: &Value) -> Result<(String, Receiver<Reply>), ClientError> {
        let number = self.next_request.fetch_add(1, Ordering::Relaxed);
        #[expect(
            clippy::disallowed_methods,
            reason = "it names a request to the program, which no record holds"
        )]
        let drawn = Uuid::new_v4().simple().to_string();
        let id = format!("req_{number}_{}", drawn.get(..8).unwrap_or_default());
        let (reply, replied) = sync_channel(1);
        {
            let mut requests = self.requests.lock();
            if !requests.is_over {
                requests.replies.insert(id.clone(), reply);
            }
        }
        let line = json!({"type": "control_request", "request_id": id, "request": request});
        if let Err(error) = self.send(&line) {
            self.forget(&id);
            return Err(error);
        }
        Ok((id, replied))
    }

    /// Stops waiting for the answer to a request.
    pub(super) fn forget(&self, id: &str) {
        self.requests.lock().replies.remove(id);
    }

    /// Processes a `control_response` of the program. One without a waiting request is dropped.
    pub(super) fn take_response(&self, mut frame: Map<String, Value>) {
        let Some(Value::Object(mut response)) = frame.remove("response") else { return };
        let id = response.get("request_id").and_then(Value::as_str).unwrap_or_default();
        let Some(waiting) = self.requests.lock().replies.remove(id) else { return };
        let reply = if response.get("subtype").and_then(Value::as_str) == Some("error") {
            let text = response.get("error").and_then(Value::as_str);
            Err(text.unwrap_or("the program gives no reason").to_owned())
        } else {
            Ok(response.remove("response").unwrap_or_default())
        };
        // If the receiver was dropped, the answer is not needed.
        let _ = waiting.send(reply);
    }

    /// Notes that the program's output has ended, with the error that ended it.
    pub(super) fn end(&self, error: Option<ClientError>) {
        {
            let mut requests = self.requests.lock();
            requests.is_over = true;
            requests.replies.clear();
        }
        self.inbox.end(error);
    }
}

fn disconnected() -> ClientError {
    ClientError::new(ErrorKind::Disconnected, Stage::Request, "the program no longer reads its input")
}

/// Writes lines to the program, on its own thread.
struct StdinWriter {
    lines: Mutex<Option<Sender<Vec<u8>>>>,
    failure: Arc<Mutex<Option<ClientError>>>,
}

impl StdinWriter {
    fn start(mut stdin: ChildStdin) -> io::Result<StdinWriter> {
        let (lines, taken) = channel::<Vec<u8>>();
        let failure = Arc::new(Mutex::new(None));
        let to = Arc::clone(&failure);
        thread::Builder::new().name("foldlog-claude-write".to_owned()).spawn(move || {
            for line in taken {
                if let Err(error) = stdin.write_all(&line).and_then(|()| stdin.flush()) {
                    let error = disconnected().because(error);
                    *to.lock() = Some(error);
                    return;
                }
            }
        })?;
        Ok(StdinWriter { lines: Mutex::new(Some(lines)), failure })
    }

    fn send(&self, line: &Value) -> Result<(), ClientError> {
        let mut bytes = line.to_string().into_bytes();
        bytes.push(b'\n');
        let sent = match &*self.lines.lock() {
            Some(lines) => lines.send(bytes).is_ok(),
            None => return Err(ClientError::new(ErrorKind::Closed, Stage::Request, "the client was closed")),
        };
        if let Some(error) = &*self.failure.lock() {
            return Err(error.clone());
        }
        if sent { Ok(()) } else { Err(disconnected()) }
    }

    fn close(&self) {
        *self.lines.lock() = None;
    }
}

pub(super) enum ChannelEvent {
    Message(ClaudeMessage),
    /// A request to the host.
    Asked(ProgramRequest, RequestResponder),
}

/// Contains the events that the host has not taken.
pub(super) struct Inbox {
    state: Mutex<InboxState>,
    changed: Condvar,
    limit: usize,
}

struct InboxState {
    /// In the order of their arrival, each with the length of its line.
    events: VecDeque<(ChannelEvent, usize)>,
    /// Length of the lines of `events`.
    bytes: usize,
    /// Number of messages received so far.
    received: u64,
    /// Set at the end of the program's output, with the error that ended it.
    end: Option<Option<ClientError>>,
    /// Whether the client is closed, so that no thread may wait for the host.
    is_closing: bool,
}

#[expect(clippy::large_enum_variant, reason = "it is taken apart at once")]
pub(super) enum InboxPoll {
    Event(ChannelEvent),
    /// No event arrived in time.
    Nothing,
    /// All events were taken, and no more can arrive.
    End(Option<ClientError>),
}

impl Inbox {
    fn new(limit: usize) -> Inbox {
        let state =
            InboxState { events: VecDeque::new(), bytes: 0, received: 0, end: None, is_closing: false };
        Inbox { state: Mutex::new(state), changed: Condvar::new(), limit }
    }

    /// Adds a frame as a message. Blocks while the unread events exceed the limit.
    pub(super) fn push(&self, frame: Frame) {
        let length = frame.line.len();
        let index = self.state.lock().received;
        // Only the reading thread adds messages, so the index cannot be taken by another one.
        let message = ClaudeMessage::new(index, frame);
        let mut state = self.wait_for_room();
        state.received += 1;
        state.bytes += length;
        state.events.push_back((ChannelEvent::Message(message), length));
        self.changed.notify_all();
    }

    /// Adds a request of the program, whose line has this length. It blocks as for a message. If
    /// the client is closed, the request is dropped.
    pub(super) fn ask(&self, asked: ProgramRequest, pending: RequestResponder, length: usize) {
        let mut state = self.wait_for_room();
        if state.is_closing {
            // Dropping a request takes another lock.
            drop(state);
            return;
        }
        state.bytes += length;
        state.events.push_back((ChannelEvent::Asked(asked, pending), length));
        self.changed.notify_all();
    }

    fn wait_for_room(&self) -> MutexGuard<'_, InboxState> {
        let mut state = self.state.lock();
        while state.bytes > self.limit && !state.is_closing {
            self.changed.wait(&mut state);
        }
        state
    }

    /// Takes the next event, and waits for it until `until`.
    pub(super) fn take(&self, until: Instant) -> InboxPoll {
        let mut state = self.state.lock();
        loop {
            if let Some((event, length)) = state.events.pop_front() {
                state.bytes -= length;
                self.changed.notify_all();
                return InboxPoll::Event(event);
            }
            if let Some(end) = &state.end {
                return InboxPoll::End(end.clone());
            }
            let is_late = self.changed.wait_until(&mut state, until).timed_out();
            if is_late && state.events.is_empty() && state.end.is_none() {
                return InboxPoll::Nothing;
            }
        }
    }

    /// Calls `look` with each message that was not taken.
    pub(super) fn find<T>(&self, mut look: impl FnMut(&ClaudeMessage) -> Option<T>) -> Option<T> {
        self.state.lock().events.iter().find_map(|(event, _)| match event {
            ChannelEvent::Message(message) => look(message),
            ChannelEvent::Asked(..) => None,
        })
    }

    /// Ends all waits for the host, and drops the requests that it has not taken.
    pub(super) fn close(&self) {
        // Dropping a request takes another lock.
        let _requests: VecDeque<(ChannelEvent, usize)> = {
            let mut state = self.state.lock();
            state.is_closing = true;
            let is_request = |(event, _): &(ChannelEvent, usize)| matches!(event, ChannelEvent::Asked(..));
            let (requests, messages) = std::mem::take(&mut state.events).into_iter().partition(is_request);
            state.events = messages;
            state.bytes = state.events.iter().map(|(_, length)| length).sum();
            requests
        };
        self.changed.notify_all();
    }

    pub(super) fn is_closing(&self) -> bool {
        self.state.lock().is_closing
    }

    /// Waits until the program's output has ended, but not after `until`.
    pub(super) fn wait_over(&self, until: Instant) {
        let mut state = self.state.lock();
        while state.end.is_none() && !self.changed.wait_until(&mut state, until).timed_out() {}
    }

    /// Returns the error that ended the program's output, once it has ended.
    pub(super) fn output_end(&self) -> Option<Option<ClientError>> {
        self.state.lock().end.clone()
    }

    fn end(&self, error: Option<ClientError>) {
        self.state.lock().end.get_or_insert(error);
        self.changed.notify_all();
    }
}
