//! Compares opening with an image of the state to folding all records, and measures the memory of
//! an open session.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use foldlog::{SessionTypes, Store};
use uuid::Uuid;

use crate::measure::{AtMost, BenchRow, ROUNDS, Result, Round, take_turns, timed};
use crate::subject::{fill, journal_types, store};

/// Number of records before the image, and after it.
const BEFORE: u64 = 1_000_000;
const BEHIND: u64 = 10_000;

/// Number of live items in STATE.
const LIVE: u64 = 1_000;

/// Number of LOG items of the session that others are compared with.
const LOG_ITEMS_FEW: u64 = 10_000;

const MEMORY_ROUNDS: usize = 3;

/// Name of the directory in which a session stores its images.
const IMAGES: &str = "snapshots";

/// Stores the images of a session, to put them in place or remove them.
pub struct Images {
    kept: PathBuf,
    place: PathBuf,
}

impl Images {
    /// Copies the present images. Later ones would have no records after them.
    pub fn keep(session: &Path, kept: PathBuf) -> Result<Images> {
        let place = session.join(IMAGES);
        if place.is_dir() {
            copy(&place, &kept)?;
        } else {
            eprintln!(
                "note: closing a session leaves no image, so there is nothing to open with but the log"
            );
        }
        Ok(Images { kept, place })
    }

    pub fn take_away(&self) -> Result<()> {
        if self.place.is_dir() {
            fs::remove_dir_all(&self.place)?;
        }
        Ok(())
    }

    pub fn put(&self) -> Result<()> {
        self.take_away()?;
        if self.kept.is_dir() { copy(&self.kept, &self.place) } else { Ok(()) }
    }
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        fs::copy(entry.path(), to.join(entry.file_name()))?;
    }
    Ok(())
}

pub fn open(dir: &Path) -> Result<Vec<BenchRow>> {
    let types = journal_types()?;
    let store = store(dir)?;
    let session = store.create(&types)?;
    let id = session.id();
    fill(&session, (0..BEFORE).map(|number| number % LIVE))?;
    session.close()?;
    let images = Images::keep(&store.session_dir(id), dir.join("images"))?;
    let session = store.open_session(id, &types)?;
    fill(&session, (0..BEHIND).map(|number| number % LIVE))?;
    session.close()?;

    let [image, fold] = take_turns(
        ROUNDS,
        [
            &mut || {
                images.put()?;
                opened(&store, id, &types)
            },
            &mut || {
                images.take_away()?;
                opened(&store, id, &types)
            },
        ],
    )?;
    let mut rows = vec![
        BenchRow::alone("open", "by folding all", BEFORE + BEHIND, fold),
        BenchRow::beside("open", "with an image", format!("{BEHIND} behind it"), image, fold)
            .at_most(AtMost::Ratio(0.05)),
    ];
    let small = memory_subject(&store, &types)?;
    let [image, fold, few] = take_turns(
        MEMORY_ROUNDS,
        [
            &mut || {
                images.put()?;
                held(&store, id)
            },
            &mut || {
                images.take_away()?;
                held(&store, id)
            },
            &mut || held(&store, small),
        ],
    )?;
    for (how, many) in [("with an image", image), ("by folding all", fold)] {
        // The sizes replace the number of items of other rows, which is always the same here.
        let param = format!("{:.0} KiB to {:.0} KiB", many.median, few.median);
        let row = BenchRow::pair("open", &format!("memory {how}"), param, many, few);
        rows.push(row.at_most(AtMost::Ratio(2.0)));
    }
    Ok(rows)
}

fn opened(store: &Store, id: Uuid, types: &SessionTypes) -> Result<Round> {
    let mut session = None;
    let ns = timed(1, || {
        session = Some(store.open_session(id, types)?);
        Ok(())
    });
    drop(session);
    ns
}

/// Makes a session with the same number of live items, but few LOG items.
fn memory_subject(store: &Store, types: &SessionTypes) -> Result<Uuid> {
    let session = store.create(types)?;
    fill(&session, (0..LOG_ITEMS_FEW).map(|number| number % LIVE))?;
    let id = session.id();
    session.close()?;
    Ok(id)
}

/// Returns the memory of an open session in KiB. It starts a process of its own, since memory that
/// this process has returned to its allocator would count too.
pub fn held(store: &Store, id: Uuid) -> Result<Round> {
    let child = Command::new(std::env::current_exe()?)
        .arg("--held-by")
        .args([store.path().as_os_str(), id.to_string().as_ref()])
        .output()?;
    if !child.status.success() {
        return Err(String::from_utf8_lossy(&child.stderr).into());
    }
    Ok(Round::of(String::from_utf8_lossy(&child.stdout).trim().parse()?))
}

/// Runs the child's part: opens the session and prints the growth of the process's memory in KiB.
pub fn print_held(path: &str, id: &str) -> Result<()> {
    let (types, store, id) = (journal_types()?, store(Path::new(path))?, Uuid::try_parse(id)?);
    let before = resident_kib(ANONYMOUS)?;
    let session = store.open_session(id, &types)?;
    println!("{}", resident_kib(ANONYMOUS)?.saturating_sub(before));
    drop(session);
    Ok(())
}

/// Names the resident memory without files. Pages of the program itself, which are loaded as it
/// runs, do not count.
pub const ANONYMOUS: &str = "RssAnon:";

/// Names the resident pages of files, including mapped ones.
pub const FILE_PAGES: &str = "RssFile:";

/// Returns this process's amount of a kind of memory, in KiB.
pub fn resident_kib(kind: &str) -> Result<u64> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix(kind));
    let kib = line.and_then(|line| line.split_whitespace().next());
    Ok(kib.ok_or_else(|| format!("the system does not say {kind}"))?.parse()?)
}
