//! Groups the requests of several writers for a contestant that commits for one writer at a time. A
//! thread takes all waiting requests, commits them together, and answers. Most hosts do less, so
//! this favours the contestants.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};

use super::ContestantWriter;
use crate::measure::Result;

/// Commits several records at once.
pub trait Commit: Send + 'static {
    fn commit(&mut self, batch: &mut dyn Iterator<Item = (u64, &[u8])>) -> Result<()>;

    /// Closes the log.
    fn close(self) -> Result<()>;
}

struct Request {
    number: u64,
    payload: Vec<u8>,
    answer: Sender<std::result::Result<Vec<u8>, String>>,
}

struct GroupCommitWriter {
    requests: Sender<Request>,
    answer: Sender<std::result::Result<Vec<u8>, String>>,
    answers: Receiver<std::result::Result<Vec<u8>, String>>,
    payload: Vec<u8>,
    thread: Option<JoinHandle<std::result::Result<(), String>>>,
}

/// Writes for a single writer, without a thread.
struct Alone<C>(C);

impl<C: Commit> ContestantWriter for Alone<C> {
    fn append(&mut self, number: u64, payload: &[u8]) -> Result<()> {
        self.0.commit(&mut std::iter::once((number, payload)))
    }

    fn close(self: Box<Self>) -> Result<()> {
        self.0.close()
    }
}

/// Shares a committer among this many writers.
pub fn share(commit: impl Commit, writers: usize) -> Vec<Box<dyn ContestantWriter>> {
    if writers == 1 {
        return vec![Box::new(Alone(commit))];
    }
    let (requests, received) = channel();
    let mut thread = Some(thread::spawn(move || serve(commit, &received).map_err(|error| error.to_string())));
    let writer = |_| {
        let (answer, answers) = channel();
        let (requests, thread) = (Sender::clone(&requests), thread.take());
        Box::new(GroupCommitWriter { requests, answer, answers, payload: Vec::new(), thread })
            as Box<dyn ContestantWriter>
    };
    let mut writers: Vec<_> = (0..writers).map(writer).collect();
    // The writer that waits for the thread is closed last, after all senders are dropped.
    writers.reverse();
    writers
}

fn serve(mut commit: impl Commit, requests: &Receiver<Request>) -> Result<()> {
    let mut batch = Vec::new();
    while let Ok(first) = requests.recv() {
        batch.push(first);
        batch.extend(requests.try_iter());
        let done = commit.commit(&mut batch.iter().map(|request| (request.number, &*request.payload)));
        let failed = done.err().map(|error| error.to_string());
        for Request { answer, payload, .. } in batch.drain(..) {
            // A dropped writer sends no more requests.
            let _ = answer.send(failed.clone().map_or(Ok(payload), Err));
        }
    }
    commit.close()
}

impl ContestantWriter for GroupCommitWriter {
    fn append(&mut self, number: u64, payload: &[u8]) -> Result<()> {
        let mut bytes = std::mem::take(&mut self.payload);
        bytes.clear();
        bytes.extend_from_slice(payload);
        let answer = Sender::clone(&self.answer);
        self.requests.send(Request { number, payload: bytes, answer })?;
        self.payload = self.answers.recv()??;
        Ok(())
    }

    fn close(self: Box<Self>) -> Result<()> {
        let GroupCommitWriter { requests, thread, .. } = *self;
        drop(requests);
        match thread.map(JoinHandle::join) {
            Some(Ok(closed)) => Ok(closed?),
            Some(Err(_)) => Err("the thread that commits panicked".into()),
            None => Ok(()),
        }
    }
}
