//! Counts the requests to a bucket, and waits at one of them.

use std::fmt::Display;
use std::io::stdin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use futures_lite::stream::Boxed;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{GetOptions, GetResult, ObjectStore, PutOptions, PutPayload, PutResult, Result};

use crate::requests::Requests;
use crate::worker::say;

/// Apparent duration of a stop at a step: longer than any lease.
const STOOD: Duration = Duration::from_secs(2 * 3_600);

/// Counts steps. At one of them the process reports it, and waits for a line on standard input.
#[derive(Clone, Debug, Default)]
pub(crate) struct Steps {
    made: Arc<AtomicU64>,
    waits_at: Option<u64>,
    has_stood: Arc<AtomicBool>,
    /// The thread that waits at a reading of the clock, and the number of readings until then.
    window: Arc<Mutex<Option<(ThreadId, u32)>>>,
}

impl Steps {
    /// Counts from now on, or from the call of [`begin_anew`](Steps::begin_anew).
    pub(crate) fn waiting_at(step: Option<u64>, counts_late: bool) -> Steps {
        let made = if counts_late { u64::MAX / 2 } else { 0 };
        Steps { made: Arc::new(AtomicU64::new(made)), waits_at: step, ..Steps::default() }
    }

    /// Has this thread wait between the last check of its next call and the start of the tool,
    /// which is at its fourth reading of the clock. The earlier ones are for the put of the start
    /// record.
    pub(crate) fn wait_in_window(&self) {
        *self.window.lock().unwrap() = Some((thread::current().id(), 4));
    }

    /// Reads the clock, which advances by more than any lease while the worker waits.
    pub(crate) fn read_clock(&self) -> Duration {
        static BEGIN: LazyLock<Instant> = LazyLock::new(Instant::now);
        let stood = if self.has_stood.load(Ordering::SeqCst) { STOOD } else { Duration::ZERO };
        let now = BEGIN.elapsed() + stood;
        let mut window = self.window.lock().unwrap();
        if let Some((thread, left)) = &mut *window
            && *thread == thread::current().id()
        {
            *left -= 1;
            if *left == 0 {
                *window = None;
                drop(window);
                self.wait("window");
            }
        }
        now
    }

    fn wait(&self, at: impl Display) {
        say("at", at);
        stdin().read_line(&mut String::new()).unwrap();
        self.has_stood.store(true, Ordering::SeqCst);
    }

    pub(crate) fn made(&self) -> u64 {
        self.made.load(Ordering::SeqCst)
    }

    pub(crate) fn begin_anew(&self) {
        self.made.store(0, Ordering::SeqCst);
    }

    pub(crate) fn over(self, files: LocalFileSystem) -> Stepping {
        Stepping { files, steps: self }
    }

    /// Blocks the thread that sends the request, and so every thread that waits for it.
    fn step(&self) {
        let step = self.made.fetch_add(1, Ordering::SeqCst);
        if self.waits_at == Some(step) {
            self.wait(step);
        }
    }
}

#[derive(Debug)]
pub(crate) struct Stepping {
    files: LocalFileSystem,
    steps: Steps,
}

#[async_trait]
impl Requests for Stepping {
    async fn create(&self, location: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        self.steps.step();
        let put = self.files.put_opts(location, payload, options).await;
        self.steps.step();
        put
    }

    async fn read(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        self.steps.step();
        self.files.get_opts(location, options).await
    }

    fn delete(&self, locations: Boxed<Result<Path>>) -> Boxed<Result<Path>> {
        self.files.delete_stream(locations)
    }
}
