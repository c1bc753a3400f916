//! Failing calls, full disks and killed processes: which errors a session reports, and that nothing
//! acknowledged is lost.

mod day;
mod full;
mod handles;
mod in_turn;
mod kills;
mod real_disk;
mod second_writer;
mod space;
mod stories;

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use foldlog::Durability;

const LEVELS: [Durability; 3] = [Durability::Process, Durability::Boundary, Durability::Every];

/// Runs all items on as many threads as there are processors, and returns the results in any order.
fn each<T: Sync, R: Send>(all: &[T], run: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let (next, came) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(one) = all.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let result = run(one);
                    came.lock().expect("nobody panics under it").push(result);
                }
            });
        }
    });
    came.into_inner().expect("nobody panics under it")
}

/// Returns the step through a list of cases: `FOLDLOG_FAILING=all` tries all of them, otherwise
/// every `by_default`-th is tried.
fn step(by_default: usize) -> usize {
    if std::env::var("FOLDLOG_FAILING").is_ok_and(|value| value == "all") { 1 } else { by_default }
}

fn number_from(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable} is to be a number, not {text:?}")))
}
