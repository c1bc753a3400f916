//! Runs the gate under a model checker. It covers every order of the threads' steps, and every
//! value that the memory model lets them read.

use loom::sync::atomic::AtomicU64;
use loom::sync::{Condvar, Mutex, MutexGuard};
use loom::thread;

use super::*;

struct LoomPrimitives;

impl Primitives for LoomPrimitives {
    type Mutex<T: Send> = Mutex<T>;
    type Guard<'a, T: Send + 'a> = MutexGuard<'a, T>;
    type Condvar = Condvar;
    type Word = AtomicU64;

    fn mutex<T: Send>(value: T) -> Mutex<T> {
        Mutex::new(value)
    }

    fn condvar() -> Condvar {
        Condvar::new()
    }

    fn lock<T: Send>(mutex: &Mutex<T>) -> Self::Guard<'_, T> {
        mutex.lock().unwrap()
    }

    fn wait<'a, T: Send>(condvar: &Condvar, guard: Self::Guard<'a, T>) -> Self::Guard<'a, T> {
        condvar.wait(guard).unwrap()
    }

    fn notify_all(condvar: &Condvar) {
        condvar.notify_all();
    }

    fn word(value: u64) -> AtomicU64 {
        AtomicU64::new(value)
    }

    fn get(word: &AtomicU64) -> u64 {
        word.load(Ordering::Acquire)
    }

    fn set(word: &AtomicU64, value: u64) {
        word.store(value, Ordering::Release);
    }
}

#[derive(Debug)]
struct Cause(&'static str);

/// Models a log with a gate. Only the gate orders accesses to its numbers.
struct ModelLog {
    gate: SyncGate<Cause, LoomPrimitives>,
    written: AtomicU64,
    durable: AtomicU64,
    running: AtomicU64,
    /// Number of syncs that still succeed before one fails.
    sound: AtomicU64,
    /// Number of syncs that are refused first.
    refused: AtomicU64,
}

impl ModelLog {
    fn new(sound: u64) -> ModelLog {
        ModelLog {
            gate: SyncGate::new(SequenceNumber::MIN),
            written: AtomicU64::new(0),
            durable: AtomicU64::new(0),
            running: AtomicU64::new(0),
            sound: AtomicU64::new(sound),
            refused: AtomicU64::new(0),
        }
    }

    /// Writes a record, and returns once it is durable or never will be.
    fn write(&self) -> (u64, Result<bool, Arc<Cause>>) {
        let target = self.written.fetch_add(1, Ordering::AcqRel) + 1;
        (target, self.sync(target))
    }

    /// Returns once the records below `target` are durable or never will be, or a sync of this
    /// thread was refused.
    fn sync(&self, target: u64) -> Result<bool, Arc<Cause>> {
        self.gate.wait(target.into(), || {
            assert_eq!(self.running.fetch_add(1, Ordering::AcqRel), 0, "one sync runs at a time");
            let through = self.written.load(Ordering::Acquire);
            let refused = self.refused.load(Ordering::Relaxed);
            if refused > 0 {
                self.refused.store(refused - 1, Ordering::Relaxed);
                self.running.fetch_sub(1, Ordering::AcqRel);
                return Err(NotSynced::Refused(Arc::new(Cause("no handle is left"))));
            }
            let sound = self.sound.load(Ordering::Relaxed);
            self.sound.store(sound.saturating_sub(1), Ordering::Relaxed);
            if sound > 0 {
                self.durable.store(through, Ordering::Relaxed);
            }
            self.running.fetch_sub(1, Ordering::AcqRel);
            if sound > 0 {
                Ok(through.into())
            } else {
                Err(NotSynced::Failed(Arc::new(Cause("the disk is gone"))))
            }
        })
    }

    /// Asserts that the records that the gate reports as durable are durable.
    fn look(&self) -> u64 {
        let synced = self.gate.synced_end();
        assert!(
            self.durable.load(Ordering::Relaxed) >= synced.get(),
            "{synced} records are said to be durable"
        );
        synced.get()
    }
}

/// Runs every order of steps in which threads are preempted at most as often as the bound allows.
/// That finds every bug that such a checker is known to have found, and takes seconds.
fn model(run: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(run);
}

#[test]
fn whoever_waited_finds_its_record_durable_in_every_order_of_two_threads_and_an_onlooker() {
    model(|| {
        let log = loom::sync::Arc::new(ModelLog::new(u64::MAX));
        let writers = [(); 2].map(|()| {
            let log = log.clone();
            thread::spawn(move || {
                let (target, told) = log.write();
                told.unwrap();
                assert!(log.look() >= target);
            })
        });
        // Durable records stay durable.
        let first = log.look();
        assert!(log.look() >= first);
        for writer in writers {
            writer.join().unwrap();
        }
        assert_eq!(log.look(), 2);
    });
}

#[test]
fn after_a_failed_sync_nobody_is_told_more_than_was_durable_before_it_in_any_order() {
    for sound in 0..2 {
        model(move || {
            let log = loom::sync::Arc::new(ModelLog::new(sound));
            let writers = [(); 2].map(|()| {
                let log = log.clone();
                thread::spawn(move || match log.write() {
                    (target, Ok(_)) => assert!(log.look() >= target),
                    (target, Err(cause)) => {
                        assert_eq!(cause.0, "the disk is gone");
                        assert!(log.gate.failure().is_some());
                        assert!(log.look() < target, "what is durable is no failure");
                    }
                })
            });
            for writer in writers {
                writer.join().unwrap();
            }
            // A failed sync is not retried: the state of its data stays unknown.
            if log.gate.failure().is_some() {
                assert!(log.gate.wait(SequenceNumber::MAX, || Ok(SequenceNumber::MAX)).is_err());
            }
        });
    }
}

#[test]
fn a_refused_sync_is_told_to_its_leader_alone_and_made_by_the_next_in_any_order() {
    model(|| {
        let log = loom::sync::Arc::new(ModelLog::new(u64::MAX));
        log.refused.store(1, Ordering::Relaxed);
        let writers = [(); 2].map(|()| {
            let log = log.clone();
            thread::spawn(move || {
                let (target, told) = log.write();
                if let Err(cause) = &told {
                    assert_eq!(cause.0, "no handle is left");
                    log.sync(target).unwrap();
                }
                assert!(log.look() >= target);
                u64::from(told.is_err())
            })
        });
        let refused: u64 = writers.map(|writer| writer.join().unwrap()).into_iter().sum();
        assert_eq!((refused, log.look()), (1, 2));
        assert!(log.gate.failure().is_none());
    });
}

#[test]
fn whoever_waits_for_a_sync_is_told_of_a_write_that_failed_meanwhile() {
    model(|| {
        let log = loom::sync::Arc::new(ModelLog::new(u64::MAX));
        let writer = {
            let log = log.clone();
            thread::spawn(move || match log.write() {
                (target, Ok(_)) => assert!(log.look() >= target),
                (_, Err(cause)) => assert_eq!(cause.0, "a write failed"),
            })
        };
        log.gate.fail(Arc::new(Cause("a write failed")));
        assert_eq!(log.gate.failure().unwrap().0, "a write failed");
        writer.join().unwrap();
    });
}
