//! A bucket whose requests are counted, and that waits at one of them.

use std::io::stdin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use futures_lite::stream::Boxed;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{GetOptions, GetResult, ObjectStore, PutOptions, PutPayload, PutResult, Result};

use crate::requests::Requests;
use crate::worker::say;

/// Counts steps. At one of them the process says so, and waits for a line on its standard input.
#[derive(Clone, Debug, Default)]
pub(crate) struct Steps {
    made: Arc<AtomicU64>,
    waits_at: Option<u64>,
}

impl Steps {
    /// Counts from now on, or once [`begin_anew`](Steps::begin_anew) is called.
    pub(crate) fn waiting_at(step: Option<u64>, counts_late: bool) -> Steps {
        let made = if counts_late { u64::MAX / 2 } else { 0 };
        Steps { made: Arc::new(AtomicU64::new(made)), waits_at: step }
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

    /// The thread that speaks to the bucket stands still here, and so does whoever waits for it.
    fn step(&self) {
        let step = self.made.fetch_add(1, Ordering::SeqCst);
        if self.waits_at == Some(step) {
            say("at", step);
            stdin().read_line(&mut String::new()).unwrap();
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
