//! Assertions over stored logs, for the tests of each new version of a host.

use std::path::Path;
use std::sync::Arc;

use foldlog::inspect::{
    LogReader, ReadOptions, ReducersReplayed, ReplayReducers, VersionsReplayed, replay_versions,
};
use foldlog::replay::{Replay, ReplayReport};
use foldlog::storage::FileStorage;
use foldlog::{Session, SessionTypes};

/// Asserts that the reducers of `types` resolve every edit of the log in the session's directory
/// `dir` as recorded.
///
/// ```
/// # use foldlog::{Event, SessionTypes, Slice, Store};
/// # #[derive(Clone, serde::Serialize, serde::Deserialize)]
/// # struct Said(String);
/// # impl Event for Said {
/// #     const NAME: &'static str = "chat.said";
/// # }
/// # struct Chat;
/// # impl Slice for Chat {
/// #     const NAME: &'static str = "chat";
/// #     type Item = Said;
/// # }
/// # let types = SessionTypes::builder().slice::<Chat>().append_all::<Chat>().build()?;
/// # let directory = tempfile::tempdir()?;
/// # let session = Store::open(directory.path())?.create(&types)?;
/// # session.dispatch(Said("hello".to_owned()))?;
/// # let dir = session.dir().to_owned();
/// # session.close()?;
/// let replayed = foldlog_replay::assert_reducers_replay(&dir, &types);
/// println!("{replayed}");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// To accept slices that are new or changed on purpose, call [`LogReader::replay_reducers`] with
/// their names in [`ReplayReducers::changed_slices`].
///
/// # Panics
///
/// Panics with the divergences, one line for each record and slice, and with the slices that would
/// differ at the end; with all events for which `types` lacks reducers; with the error if the log
/// cannot be read.
#[track_caller]
pub fn assert_reducers_replay(dir: impl AsRef<Path>, types: &SessionTypes) -> ReducersReplayed {
    let options = ReplayReducers { fold_produced: true, ..ReplayReducers::default() };
    let replayed = LogReader::open(dir).and_then(|reader| reader.replay_reducers(types, &options));
    match replayed {
        Ok(replayed) if replayed.holds() => replayed,
        Ok(replayed) => fail(&replayed.to_string()),
        Err(error) => fail(&error.to_string()),
    }
}

/// Asserts that every event and every item of the logs in the store at `store` decodes with
/// `types`, after an [upgrade](foldlog::Event::upcast) of older versions. Events that `types` does
/// not know are listed, and are not a failure. Returns the table of results, which a test may
/// print.
///
/// # Panics
///
/// Panics with the table if a recording does not decode or a session cannot be read; with the error
/// if the store has no sessions or cannot be listed.
#[track_caller]
pub fn assert_versions_replay(store: impl AsRef<Path>, types: &SessionTypes) -> VersionsReplayed {
    match replay_versions(store.as_ref(), types) {
        Ok(replayed) if replayed.holds() && replayed.sessions > 0 => replayed,
        Ok(replayed) if replayed.holds() => fail("the store has no sessions"),
        Ok(replayed) => fail(&replayed.to_string()),
        Err(error) => fail(&error.to_string()),
    }
}

/// Asserts that `host` repeats its actions from the log in the session's directory `dir`. `host` is
/// called once for each recorded process. Its result is ignored, so let it print its error: see
/// [`replay`](foldlog::replay). No tool runs; to run tools, use the [mode](Replay::mode) of
/// [`Replay`]. Returns the report, with the number of compared records.
///
/// ```
/// # use foldlog::{Event, Session, SessionTypes, Slice, Store};
/// # #[derive(Clone, serde::Serialize, serde::Deserialize)]
/// # struct Said(String);
/// # impl Event for Said {
/// #     const NAME: &'static str = "chat.said";
/// # }
/// # struct Chat;
/// # impl Slice for Chat {
/// #     const NAME: &'static str = "chat";
/// #     type Item = Said;
/// # }
/// # let types = SessionTypes::builder().slice::<Chat>().append_all::<Chat>().build()?;
/// # let directory = tempfile::tempdir()?;
/// fn greet(session: Session) -> foldlog::Result<()> {
///     let name: String = session.inputs().observe("user", || "Ada".to_owned())?;
///     session.dispatch(Said(format!("hello {name}"))).map(drop)
/// }
///
/// # let session = Store::open(directory.path())?.create(&types)?;
/// # greet(session.clone())?;
/// # let dir = session.dir().to_owned();
/// # session.close()?;
/// let replayed = foldlog_replay::assert_host_replays(&dir, &types, greet);
/// assert_eq!(replayed.compared, 2);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Panics
///
/// Panics with the first divergence: the record, lane, slice and path, and the recorded and the
/// produced value; if no record was compared, since the log has none of a host; with the error if
/// the log cannot be read, or if `types` does not fit it.
#[track_caller]
pub fn assert_host_replays<T>(
    dir: impl AsRef<Path>,
    types: &SessionTypes,
    host: impl FnMut(Session) -> T,
) -> ReplayReport {
    let options = ReadOptions { outline: true, ..ReadOptions::default() };
    let log = LogReader::open_with(Arc::new(FileStorage::new()), dir, options);
    match log.and_then(|log| Replay::new(&log, types).run(host)) {
        Ok(report) if report.compared > 0 => report,
        Ok(_) => fail("nothing was compared: the log contains no records of a host"),
        Err(error) => fail(&error.to_string()),
    }
}

#[track_caller]
#[expect(clippy::panic, reason = "an assertion of a test has no other way to fail")]
fn fail(message: &str) -> ! {
    panic!("{message}")
}
