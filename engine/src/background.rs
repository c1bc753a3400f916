//! The background thread of a store, for work that callers need not wait for.
//!
//! | rank | task | why it has this rank |
//! |---|---|---|
//! | space | brings pages in, creates the next segment | the writer is about to need them |
//! | sync | syncs due records | limits the loss in a power cut |
//! | seal | writes the digest of a finished segment | only later openings and audits read it |
//! | image | writes a projection next to the log | only later openings read it |
//! | rest | closes the files of an idle session | frees a file handle, which may not be needed |
//!
//! The thread starts with the first task and ends after a second without work, so an idle store has
//! no thread. A task of many steps runs one step at a time, and a long step calls
//! [`Background::let_pass`], so that more urgent tasks never wait long.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};
use uuid::Uuid;

use crate::clock;

/// Maximum delay of a sync that is not urgent, and of the thread's end when there is no work.
pub(crate) const PATIENCE: Duration = Duration::from_secs(1);

/// Rank of a task, the most urgent first; the module's table describes each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Rank {
    Space,
    Sync,
    Seal,
    Image,
    Rest,
}

/// Outcome of a task's step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RemainingWork {
    Nothing,
    More,
}

type BackgroundTask = Box<dyn FnMut() -> RemainingWork + Send>;

/// Runs background tasks.
#[derive(Clone, Debug)]
pub(crate) enum Background {
    /// On the calling thread, at once. A single thread then has the same effects each time.
    Inline,
    /// On the store's background thread.
    Thread(Arc<Worker>),
}

impl Background {
    /// Returns a background with its own thread, which starts with the first task.
    pub(crate) fn thread() -> Background {
        Background::Thread(Arc::default())
    }

    /// Adds a task, which runs step by step.
    pub(crate) fn offer(&self, rank: Rank, mut task: impl FnMut() -> RemainingWork + Send + 'static) {
        match self {
            Background::Inline => while task() == RemainingWork::More {},
            Background::Thread(worker) => worker.offer(rank, Box::new(task)),
        }
    }

    /// Runs the tasks that are more urgent than `rank`. Called from a long step of a task of that
    /// rank; returns at once on other threads.
    pub(crate) fn let_pass(&self, rank: Rank) {
        if let Background::Thread(worker) = self {
            worker.shared.let_pass(rank);
        }
    }
}

#[derive(Default)]
pub(crate) struct Worker {
    shared: Arc<BackgroundQueue>,
}

#[derive(Default)]
struct BackgroundQueue {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    tasks: BTreeMap<Rank, VecDeque<BackgroundTask>>,
    /// Deferred tasks, by rank and session: syncs, and idle checks. They become due at
    /// `later_until`.
    later: BTreeMap<(Rank, Uuid), BackgroundTask>,
    later_until: Option<Instant>,
    running: bool,
    thread: Option<ThreadId>,
    waiting: bool,
    ended: bool,
}

impl State {
    /// Takes the most urgent task, or if `rank` is given, the most urgent task above that rank.
    fn take_above(&mut self, rank: Option<Rank>) -> Option<(Rank, BackgroundTask)> {
        let mut tasks = self.tasks.iter_mut().take_while(|(other, _)| rank.is_none_or(|rank| **other < rank));
        tasks.find_map(|(rank, tasks)| Some((*rank, tasks.pop_front()?)))
    }
}

impl std::fmt::Debug for Worker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let state = self.shared.state.lock();
        f.debug_struct("Worker").field("running", &state.running).finish()
    }
}

impl Worker {
    fn offer(&self, rank: Rank, task: BackgroundTask) {
        let mut state = self.shared.state.lock();
        state.tasks.entry(rank).or_default().push_back(task);
        self.see_to_it(state);
    }

    /// Adds a session's sync or idle check that runs once [`PATIENCE`] has passed or a little
    /// earlier, in place of one that has not run yet.
    pub(crate) fn offer_later(
        &self,
        rank: Rank,
        session: Uuid,
        task: impl FnMut() -> RemainingWork + Send + 'static,
    ) {
        let mut state = self.shared.state.lock();
        state.later.insert((rank, session), Box::new(task));
        state.later_until.get_or_insert_with(|| clock::after(PATIENCE));
        if !state.running {
            self.see_to_it(state);
        }
    }

    /// Drops the deferred tasks of a closed session.
    pub(crate) fn forget(&self, session: Uuid) {
        let mut state = self.shared.state.lock();
        state.later.retain(|(_, other), _| *other != session);
    }

    fn see_to_it(&self, mut state: MutexGuard<'_, State>) {
        if !state.running {
            let shared = Arc::clone(&self.shared);
            let spawned =
                std::thread::Builder::new().name("foldlog-background".to_owned()).spawn(move || shared.run());
            // If no thread can be spawned, the next call that offers a task tries again.
            state.running = spawned.is_ok();
        } else if state.waiting {
            // The woken thread must not hold up a caller that holds a session's lock.
            drop(state);
            self.shared.changed.notify_one();
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.shared.state.lock().ended = true;
        self.shared.changed.notify_one();
    }
}

impl BackgroundQueue {
    fn run(&self) {
        self.state.lock().thread = Some(std::thread::current().id());
        while let Some((rank, task)) = self.next() {
            self.step(rank, task);
        }
    }

    fn step(&self, rank: Rank, mut task: BackgroundTask) {
        if task() == RemainingWork::More {
            self.state.lock().tasks.entry(rank).or_default().push_front(task);
        }
    }

    fn let_pass(&self, rank: Rank) {
        let here = Some(std::thread::current().id());
        loop {
            let mut state = self.state.lock();
            if state.thread != here {
                return;
            }
            let Some((rank, task)) = state.take_above(Some(rank)) else { return };
            drop(state);
            self.step(rank, task);
        }
    }

    /// Waits for the most urgent task. Returns `None` once the thread should end.
    fn next(&self) -> Option<(Rank, BackgroundTask)> {
        let mut state = self.state.lock();
        let idle_until = clock::after(PATIENCE);
        loop {
            if state.ended {
                return None;
            }
            let now = clock::after(Duration::ZERO);
            if state.later_until.is_some_and(|until| until <= now) {
                state.later_until = None;
                for ((rank, _), task) in std::mem::take(&mut state.later) {
                    state.tasks.entry(rank).or_default().push_back(task);
                }
            }
            if let Some(found) = state.take_above(None) {
                return Some(found);
            }
            if state.later.is_empty() && now >= idle_until {
                state.running = false;
                return None;
            }
            if !clock::counter_is_learnt() {
                // Tasks that are offered during this wait a millisecond, once per process.
                MutexGuard::unlocked(&mut state, clock::learn_counter);
                continue;
            }
            let until = state.later_until.unwrap_or(idle_until);
            state.waiting = true;
            self.changed.wait_until(&mut state, until);
            state.waiting = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn what_is_urgent_is_done_between_the_steps_of_what_is_not() {
        let background = Background::thread();
        let (said, heard) = mpsc::channel();
        let (go, wait) = mpsc::channel::<()>();
        let mut steps = 0;
        let of_seal = said.clone();
        background.offer(Rank::Seal, move || {
            wait.recv().unwrap();
            steps += 1;
            of_seal.send(format!("seal {steps}")).unwrap();
            if steps < 2 { RemainingWork::More } else { RemainingWork::Nothing }
        });
        background.offer(Rank::Space, move || {
            said.send("space".to_owned()).unwrap();
            RemainingWork::Nothing
        });
        go.send(()).unwrap();
        go.send(()).unwrap();
        let order: Vec<String> = (0..3).map(|_| heard.recv().unwrap()).collect();
        let place = |what: &str| order.iter().position(|said| said == what).unwrap();
        assert!(place("space") < place("seal 2"), "{order:?}");
    }

    #[test]
    fn a_long_step_lets_what_is_more_urgent_pass_and_nothing_else() {
        let background = Background::thread();
        let (said, heard) = mpsc::channel();
        let (go, wait) = mpsc::channel::<()>();
        let (inner, of_sync) = (background.clone(), said.clone());
        background.offer(Rank::Sync, move || {
            wait.recv().unwrap();
            inner.let_pass(Rank::Sync);
            of_sync.send("sync").unwrap();
            RemainingWork::Nothing
        });
        for (rank, name) in [(Rank::Sync, "another sync"), (Rank::Seal, "seal"), (Rank::Space, "space")] {
            let said = said.clone();
            background.offer(rank, move || {
                said.send(name).unwrap();
                RemainingWork::Nothing
            });
        }
        // The test's own thread is not the background thread, so this does nothing.
        background.let_pass(Rank::Image);
        go.send(()).unwrap();
        let order: Vec<&str> = (0..4).map(|_| heard.recv().unwrap()).collect();
        assert_eq!(order, ["space", "sync", "another sync", "seal"]);
    }

    #[test]
    fn inline_means_done_when_the_call_returns() {
        let done = Arc::new(std::sync::atomic::AtomicU32::new(0));
        let count = Arc::clone(&done);
        Background::Inline.offer(Rank::Seal, move || {
            let before = count.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
            if before < 4 { RemainingWork::More } else { RemainingWork::Nothing }
        });
        assert_eq!(done.load(std::sync::atomic::Ordering::SeqCst), 5);
    }
}
