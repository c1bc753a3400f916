//! The law of images: nothing depends on an image. With any content of its `snapshots` directory, a
//! session opens and continues as without images, to the byte.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use foldlog::log::SegmentSizes;
use foldlog::storage::{MemoryStorage, Storage};
use foldlog::testkit::rollback_discarding_logs;
use foldlog::{
    BackgroundSync, CompactOptions, Durability, Export, FixedClock, ImportOptions, RecoveryReport, Session,
    SessionOptions, Slice, SnapshotOptions, Store, StoreOptions,
};
use foldlog_test_support::host::*;
use proptest::prelude::*;
use proptest::sample::Index;
use uuid::Uuid;

use super::actions::{Action, Hosts, How, actions_and_logs_undone};
use super::ground::Ground;
use super::world::{OBJECT_BYTES_MIN, World, dispatch};

const SESSIONS: &str = "/store/sessions";

proptest! {
    #![proptest_config(super::config())]

    /// The images are of any moment, of this session, another one or a diverged copy, intact or
    /// damaged, under any name. The log is of any moment too, whole or cut off. Each answer must be
    /// the same as without images.
    #[test]
    fn nothing_depends_on_an_image(case in cases()) {
        let lived = Lived::through(&case);
        let moment = case.log.of(&lived.moments);
        let placed = lived.placed(&case.images);
        let same_boot = MemoryStorage::new().boot_id().unwrap();
        let boot = if case.other_boot { Uuid::from_u128(2) } else { same_boot };
        let [without, with] = [&BTreeMap::new(), &placed].map(|placed| {
            let disk = moment.disk(boot, case.cut.as_ref());
            for (name, placed) in placed {
                placed.put(&disk, &moment.snapshots().join(name));
            }
            answers(&disk, moment.session, &case.later)
        });
        prop_assert_eq!(&with.said, &without.said);
        prop_assert!(with.logs == without.logs, "the same bytes are written afterwards");
        if let Some(report) = with.report {
            check_use(&report, &placed, &moment.snapshots());
        }
    }
}

/// Checks that every image before the one in use was unusable and is named, and that the one in use
/// is intact.
fn check_use(report: &RecoveryReport, placed: &BTreeMap<String, Placed>, directory: &Path) {
    let files: Vec<_> = placed.iter().rev().filter(|(name, image)| image.is_image(name)).collect();
    let dropped: Vec<PathBuf> = files.iter().map(|(name, _)| directory.join(name)).collect();
    assert!(dropped.starts_with(&report.dropped_images), "{:?} of {dropped:?}", report.dropped_images);
    match files.get(report.dropped_images.len()) {
        Some((name, used)) => {
            assert!(used.damage.is_none(), "{name} was used");
            assert!(report.from_image.is_none_or(|position| position == used.position));
        }
        None => assert_eq!(report.from_image, None),
    }
}

/// A history, a copy that diverges from it, and the changes to the images.
#[derive(Clone, Debug)]
struct Case {
    durability: Durability,
    history: Vec<Action>,
    diverges: At,
    diverged: Vec<Action>,
    /// The moment of the remaining log.
    log: At,
    /// The cut through the last segment of the log, if any.
    cut: Option<Index>,
    images: Vec<Image>,
    other_boot: bool,
    later: Vec<Action>,
}

#[derive(Clone, Debug)]
enum At {
    Last,
    Any(Index),
}

impl At {
    fn of<'a, T>(&self, from: &'a [T]) -> &'a T {
        match self {
            At::Last => from.last().unwrap(),
            At::Any(index) => index.get(from),
        }
    }
}

/// One of all images ever written, under its own name or another.
#[derive(Clone, Debug)]
struct Image {
    which: At,
    name: Option<u64>,
    damage: Option<Damage>,
}

#[derive(Clone, Debug)]
enum Damage {
    Flipped(Index, u8),
    Truncated(Index),
    Extended(Vec<u8>),
    Emptied,
    Zeroed,
    /// An entry that has an image's name but is no file.
    NoFile,
    /// The incomplete file of a crash during the write.
    HalfBuilt,
}

fn at() -> impl Strategy<Value = At> {
    prop_oneof![Just(At::Last), any::<Index>().prop_map(At::Any)]
}

fn cases() -> impl Strategy<Value = Case> {
    let damage = prop_oneof![
        3 => (any::<Index>(), 0..8_u8).prop_map(|(at, bit)| Damage::Flipped(at, bit)),
        1 => any::<Index>().prop_map(Damage::Truncated),
        1 => prop::collection::vec(any::<u8>(), 1..50).prop_map(Damage::Extended),
        1 => Just(Damage::Emptied),
        1 => Just(Damage::Zeroed),
        1 => Just(Damage::NoFile),
        1 => Just(Damage::HalfBuilt),
    ];
    let name = prop_oneof![6 => Just(None), 1 => (0..60_u64).prop_map(Some), 1 => Just(Some(u64::MAX))];
    let image = (at(), name, prop::option::weighted(0.3, damage)).prop_map(|(which, name, damage)| Image {
        which,
        name,
        damage,
    });
    let durability = prop::sample::select(vec![Durability::Process, Durability::Boundary, Durability::Every]);
    let lived = (durability, actions_and_logs_undone(40), at(), actions_and_logs_undone(20));
    let left = (at(), prop::option::weighted(0.2, any::<Index>()), prop::collection::vec(image, 1..4));
    (lived, left, any::<bool>(), actions_and_logs_undone(8)).prop_map(
        |((durability, history, diverges, diverged), (log, cut, images), other_boot, later)| Case {
            durability,
            history,
            diverges,
            diverged,
            log,
            cut,
            images,
            other_boot,
            later,
        },
    )
}

/// The disk at one moment.
struct Moment {
    session: Uuid,
    files: BTreeMap<PathBuf, Vec<u8>>,
}

impl Moment {
    fn of(world: &World) -> Moment {
        Moment { session: world.session().id(), files: world.disk.dump() }
    }

    fn snapshots(&self) -> PathBuf {
        Path::new(SESSIONS).join(self.session.to_string()).join("snapshots")
    }

    /// Returns a disk with the files of that moment, except images and locks.
    fn disk(&self, boot: Uuid, cut: Option<&Index>) -> MemoryStorage {
        let disk = MemoryStorage::with_boot_id(boot);
        let own = Path::new(SESSIONS).join(self.session.to_string());
        let segments = self.files.keys().filter(|path| is_segment(path) && path.parent() == Some(&own));
        let last = segments.max().cloned();
        for (path, bytes) in self.files.iter().filter(|(path, _)| is_of_log(path)) {
            let mut bytes = bytes.clone();
            if let (Some(cut), true) = (cut, Some(path) == last.as_ref()) {
                let used = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
                let from = cut.index(used + 1);
                bytes[from..].fill(0);
            }
            disk.write_file(path, bytes).unwrap();
        }
        disk
    }
}

fn is_segment(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "seg")
}

fn is_of_log(path: &Path) -> bool {
    is_segment(path) || path.parent().is_some_and(|directory| directory.ends_with("objects"))
}

/// A completed history, and every image that it ever wrote.
struct Lived {
    moments: Vec<Moment>,
    images: Vec<(u64, Vec<u8>)>,
}

impl Lived {
    fn through(case: &Case) -> Lived {
        let mut world = World::new(Ground::MemoryWithImages, case.durability, Hosts::Typed);
        let mut moments = vec![Moment::of(&world)];
        let places: Vec<usize> = (0..=case.history.len()).collect();
        let diverges = case.diverges.of(&places);
        let mut diverged = None;
        for (place, action) in case.history.iter().chain([&Action::Reopen(How::Closed)]).enumerate() {
            if place == *diverges {
                diverged = Some(world.diverged());
            }
            world.live_on(action);
            moments.push(Moment::of(&world));
        }
        let mut diverged = diverged.unwrap();
        let mut elsewhere = Vec::new();
        for action in case.diverged.iter().chain([&Action::Reopen(How::Closed)]) {
            diverged.live_on(action);
            elsewhere.push(Moment::of(&diverged));
        }
        let mut images = Vec::new();
        let mut known = BTreeSet::new();
        for (path, bytes) in elsewhere.iter().chain(&moments).flat_map(|moment| &moment.files) {
            let position = path.extension().is_some_and(|extension| extension == "image");
            if position && known.insert(bytes.clone()) {
                let name = path.file_stem().unwrap().to_str().unwrap();
                images.push((name.parse().unwrap(), bytes.clone()));
            }
        }
        Lived { moments, images }
    }

    fn placed(&self, images: &[Image]) -> BTreeMap<String, Placed> {
        let mut placed = BTreeMap::new();
        for image in images {
            let (position, bytes) = image.which.of(&self.images).clone();
            let mut name = format!("{:020}.image", image.name.unwrap_or(position));
            if matches!(image.damage, Some(Damage::HalfBuilt)) {
                name.push_str(".new");
            }
            placed.insert(name, Placed { position, bytes, damage: image.damage.clone() });
        }
        placed
    }
}

/// An image that is placed into the directory of a log.
struct Placed {
    position: u64,
    bytes: Vec<u8>,
    damage: Option<Damage>,
}

impl Placed {
    fn is_image(&self, name: &str) -> bool {
        name.ends_with(".image") && !matches!(self.damage, Some(Damage::NoFile))
    }

    fn put(&self, disk: &MemoryStorage, path: &Path) {
        let mut bytes = self.bytes.clone();
        match &self.damage {
            None | Some(Damage::HalfBuilt) => {}
            Some(Damage::Flipped(at, bit)) => bytes[at.index(self.bytes.len())] ^= 1 << bit,
            Some(Damage::Truncated(at)) => bytes.truncate(at.index(self.bytes.len())),
            Some(Damage::Extended(more)) => bytes.extend(more),
            Some(Damage::Emptied) => bytes.clear(),
            Some(Damage::Zeroed) => bytes.fill(0),
            Some(Damage::NoFile) => return disk.make_other(path).unwrap(),
        }
        disk.write_file(path, bytes).unwrap();
    }
}

/// All output of a session while it is opened and continued.
struct Answers {
    said: Vec<String>,
    /// The report of the opening, if the session opens.
    report: Option<RecoveryReport>,
    /// The segments and objects at the end.
    logs: BTreeMap<PathBuf, Vec<u8>>,
}

fn answers(disk: &MemoryStorage, id: Uuid, later: &[Action]) -> Answers {
    let options = StoreOptions {
        storage: Arc::new(disk.process()),
        clock: Arc::new(FixedClock::with_step(1_900_000_000_000_000, 250_001)),
        seed: Some(11),
        durability: Durability::Boundary,
        segments: SegmentSizes { first_bytes: 1, max_bytes: 4096, ahead_bytes_min: 0 },
        object_bytes_min: OBJECT_BYTES_MIN,
        // Writing images syncs, and syncs leave traces in the log.
        image_bytes_min: u64::MAX,
        background: BackgroundSync::Inline,
        ..StoreOptions::default()
    };
    let store = Store::open_with("/store", options).unwrap();
    let before = sessions(disk);
    let opened = store.open_session(id, &types());
    assert!(sessions(disk) == before, "opening writes nothing");
    let (mut said, mut report) = (Vec::new(), None);
    match opened {
        Err(error) => said.push(error.to_string()),
        Ok(session) => {
            report = Some(session.log().recovery().clone());
            said.push(all_of(&session));
            let mut session = Some(session);
            for action in later {
                said.push(perform(&store, &mut session, action));
                said.push(all_of(session.as_ref().unwrap()));
            }
            said.push(perform(&store, &mut session, &Action::Reopen(How::Closed)));
        }
    }
    let logs = disk.dump().into_iter().filter(|(path, _)| is_of_log(path)).collect();
    Answers { said, report, logs }
}

fn sessions(disk: &MemoryStorage) -> BTreeMap<PathBuf, Vec<u8>> {
    disk.dump().into_iter().filter(|(path, _)| path.starts_with(SESSIONS)).collect()
}

fn all_of(session: &Session) -> String {
    let mut report = session.log().recovery().clone();
    (report.from_image, report.dropped_images) = (None, Vec::new());
    let facts = (
        session.id(),
        session.log().position(),
        session.log().synced_end(),
        session.log().bytes(),
        session.parent(),
    );
    let logs = [log_of::<Notes>(session), log_of::<NoteSizes>(session), log_of::<GoodOnes>(session)];
    let views = [view_of::<Plan>(session), view_of::<StepOfPart>(session), view_of::<Draft>(session)];
    format!(
        "{report:?} {facts:?} {:?} {logs:?} {views:?}",
        session.dynamic().state().map_err(|error| error.to_string())
    )
}

/// Reads a LOG slice, whole and by positions in it.
fn log_of<S: Slice<Item: Debug>>(session: &Session) -> String {
    let log = session.log().slice::<S>().unwrap();
    let places: Vec<_> = (0..=log.len()).map(|place| log.get(place).map_err(|e| e.to_string())).collect();
    let whole: Vec<_> = log.iter().map(|item| item.map_err(|error| error.to_string())).collect();
    format!("{places:?} {whole:?} {:?}", log.tail(2).map_err(|error| error.to_string()))
}

fn view_of<S: Slice<Item: Debug>>(session: &Session) -> String {
    format!("{:?}", session.view::<S>().map(|view| view.iter().map(|i| format!("{i:?}")).collect::<Vec<_>>()))
}

/// Returns the outcome of an action, be it success or an error.
fn perform(store: &Store, session: &mut Option<Session>, action: &Action) -> String {
    let live = session.as_ref().unwrap();
    let id = live.id();
    let place = |at: &Index| at.index(live.log().position().map_or(1, |last| last.get() as usize + 1)) as u64;
    let (done, next) = match action {
        Action::Change(change) => (told(dispatch(live, change, false)), None),
        Action::Snapshot => (told(live.snapshot(SnapshotOptions::default())), None),
        Action::RollBack(at) | Action::RollBackToSnapshot(at) => (told(live.rollback_to(place(at))), None),
        Action::RollBackLogsToo(at) => (told(rollback_discarding_logs(live, place(at))), None),
        Action::Reopen(_) => {
            let closed = told(session.take().unwrap().close());
            let again = store.open_session(id, &types()).unwrap();
            (closed + &all_of(&again), Some(again))
        }
        Action::Compact(snapshots) => {
            session.take().unwrap().close().unwrap();
            let options = CompactOptions { snapshots: *snapshots, ..CompactOptions::default() };
            let compacted = told(store.compact(id, &options));
            let again = store.open_session(id, &types()).unwrap();
            (compacted + &all_of(&again), Some(again))
        }
        Action::Fork { at, follow } => match store.fork(id, place(at), &types(), SessionOptions::default()) {
            Ok(fork) => (all_of(&fork), follow.then_some(fork)),
            Err(error) => (error.to_string(), None),
        },
        Action::Import => {
            let text = live.log().export().unwrap().to_json().unwrap();
            let options = ImportOptions { keep_unknown: true, ..ImportOptions::default() };
            let import = store.import(&Export::from_json(&text).unwrap(), &types(), options).unwrap();
            (text, Some(import))
        }
    };
    if let Some(next) = next {
        *session = Some(next);
    }
    done
}

fn told<T: Debug>(result: foldlog::Result<T>) -> String {
    format!("{:?}", result.map_err(|error| error.to_string()))
}
