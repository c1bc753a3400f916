//! Exchanges workspaces while calls fail and are recovered: the root, its parents and inner
//! directories, by renames and links. A victim directory next to the workspace keeps every byte.
//! The workspace is restored exactly, or the call is refused with the path's name and can be
//! recovered once everything is back in its place.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use foldlog::Durability;
use foldlog::filesystem::Filesystem;
use foldlog::tools::{ToolContext, ToolError};
use nix::sys::signal::{Signal, raise};

use crate::chance::Chance;
use crate::child;
use crate::host::{self, Desk};
use crate::report::{Report, Result};
use crate::tree::{Compared, Tree};
use crate::{Plan, place};

/// Names the exchanged directory and its replacement.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Swap {
    ParentForLink,
    ParentForDirectory,
    RootForLink,
    RootForDirectory,
    RootForEmpty,
    RootForNothing,
    InnerForLink,
}

const SWAPS: [Swap; 7] = [
    Swap::ParentForLink,
    Swap::ParentForDirectory,
    Swap::RootForLink,
    Swap::RootForDirectory,
    Swap::RootForEmpty,
    Swap::RootForNothing,
    Swap::InnerForLink,
];

/// Number of additional files, so that a restore takes as long as several exchanges.
const MANY: usize = 160;

/// An hour, in its long form.
const LONG: Duration = Duration::from_secs(3_600);

pub(crate) fn run(plan: &Plan) -> Result<Report> {
    let mut report = Report::new("swaps");
    let directory = place::directory(&plan.dir)?;
    let mut chance = Chance::new(plan.seed);
    let until = match (plan.seconds, plan.long) {
        (Some(seconds), _) => Some(Instant::now() + Duration::from_secs(seconds)),
        (None, true) => Some(Instant::now() + LONG),
        (None, false) => None,
    };
    let rounds = plan.rounds(3 * SWAPS.len() as u64, u64::MAX);
    let mut round = 0;
    while until.is_none_or(|until| Instant::now() < until) && (until.is_some() || round < rounds) {
        let swap = SWAPS[usize::try_from(round).unwrap_or_default() % SWAPS.len()];
        let scene = Scene::new(directory.path().join(round.to_string()))?;
        let done = match (round / SWAPS.len() as u64) % 3 {
            0 => fails_while_swapped(&mut report, &scene, swap),
            1 => killed_while_swapped(&mut report, &scene, swap, &mut chance),
            _ => races(&mut report, &scene, swap, &mut chance),
        };
        // An unexpected file prevents restoring the original places.
        if let Err(trouble) = done {
            report.broken(format!("{swap:?}, round {round}: {trouble}"));
        }
        fs::remove_dir_all(&scene.base)?;
        round += 1;
    }
    report.count("rounds", round);
    Ok(report)
}

/// A workspace, and the victim next to it.
#[derive(Clone, Debug)]
struct Scene {
    base: PathBuf,
}

/// The earlier contents of both.
struct Before {
    workspace: Tree,
    victim: Tree,
}

impl Scene {
    fn new(base: PathBuf) -> Result<Scene> {
        let scene = Scene { base };
        for (root, word) in
            [(scene.root(), "the workspace's"), (scene.victim().join("workspace"), "the victim's")]
        {
            for file in
                ["kept", "changed", "removed", "inner/one", "inner/deep/two", "directory/three", "renamed"]
            {
                let path = root.join(file);
                fs::create_dir_all(path.parent().ok_or("a file is in a directory")?)?;
                fs::write(&path, format!("{word} {file}"))?;
            }
            for n in 0..MANY {
                fs::write(
                    root.join(["directory", "inner/deep"][n % 2]).join(n.to_string()),
                    format!("{word} {n}"),
                )?;
            }
        }
        fs::write(scene.victim().join("beside"), "the victim's own")?;
        Ok(scene)
    }

    fn parent(&self) -> PathBuf {
        self.base.join("outer/parent")
    }

    fn root(&self) -> PathBuf {
        self.parent().join("workspace")
    }

    fn victim(&self) -> PathBuf {
        self.base.join("victim")
    }

    fn before(&self) -> Result<Before> {
        Ok(Before { workspace: Tree::of(&self.root())?, victim: Tree::of(&self.victim())? })
    }

    fn swap(&self, swap: Swap) -> std::io::Result<()> {
        let (parent, root, victim) = (self.parent(), self.root(), self.victim());
        let inner = root.join("inner");
        match swap {
            Swap::ParentForLink => {
                fs::rename(&parent, away(&parent)).and_then(|()| symlink(&victim, &parent))
            }
            Swap::ParentForDirectory => {
                fs::rename(&parent, away(&parent)).and_then(|()| fs::rename(&victim, &parent))
            }
            Swap::RootForLink => {
                fs::rename(&root, away(&root)).and_then(|()| symlink(victim.join("workspace"), &root))
            }
            Swap::RootForDirectory => {
                fs::rename(&root, away(&root)).and_then(|()| fs::rename(victim.join("workspace"), &root))
            }
            Swap::RootForEmpty => fs::rename(&root, away(&root)).and_then(|()| fs::create_dir(&root)),
            Swap::RootForNothing => fs::rename(&root, away(&root)),
            Swap::InnerForLink => fs::rename(&inner, away(&inner))
                .and_then(|()| symlink(victim.join("workspace/inner"), &inner)),
        }
    }

    /// Undoes the exchange. Returns a description of any unexpected file.
    fn put_back(&self, swap: Swap) -> std::io::Result<Option<String>> {
        let (parent, root, victim) = (self.parent(), self.root(), self.victim());
        let back = |path: &Path| fs::rename(away(path), path).map(|()| None);
        match swap {
            Swap::ParentForLink => fs::remove_file(&parent).and_then(|()| back(&parent)),
            Swap::ParentForDirectory => fs::rename(&parent, &victim).and_then(|()| back(&parent)),
            Swap::RootForLink => fs::remove_file(&root).and_then(|()| back(&root)),
            Swap::RootForDirectory => fs::rename(&root, victim.join("workspace")).and_then(|()| back(&root)),
            Swap::RootForEmpty => {
                let filled = fs::remove_dir(&root).err().map(|error| format!("the empty directory: {error}"));
                if filled.is_some() {
                    fs::remove_dir_all(&root)?;
                }
                back(&root).map(|_| filled)
            }
            Swap::RootForNothing => {
                let made = root.symlink_metadata().is_ok().then(|| "a workspace was made anew".to_owned());
                if made.is_some() {
                    fs::remove_dir_all(&root)?;
                }
                back(&root).map(|_| made)
            }
            Swap::InnerForLink => {
                // A restore may have put the directory back, and removed the file next to it.
                let inner = root.join("inner");
                if inner.is_symlink() {
                    fs::remove_file(&inner)?;
                }
                if away(&inner).exists() && !inner.exists() {
                    back(&inner)?;
                }
                Ok(None)
            }
        }
    }
}

/// Returns the temporary path of an exchanged directory.
fn away(path: &Path) -> PathBuf {
    path.with_extension("away")
}

/// Changes files before any exchange.
fn deed(context: &ToolContext) -> std::result::Result<(), ToolError> {
    let files = context.resources().get::<dyn Filesystem>().ok_or_else(host::fails)?;
    files.write("changed", b"by the tool")?;
    files.write("new/deep/er", b"by the tool")?;
    files.delete("removed")?;
    files.delete("directory")?;
    files.delete("inner/deep")?;
    files.append("inner/one", b" and the tool's")?;
    files.rename("renamed", "elsewhere")?;
    Ok(())
}

/// A call exchanges a directory and fails.
fn fails_while_swapped(report: &mut Report, scene: &Scene, swap: Swap) -> Result<()> {
    let before = scene.before()?;
    let desk = Desk::at(&scene.base, &scene.root(), Durability::Boundary, None)?;
    let within = scene.clone();
    let called = desk.call(move |context| {
        deed(context)?;
        within.swap(swap)?;
        Err(host::fails())
    });
    let what = format!("{swap:?} in a call that fails");
    report.count("calls that failed", 1);
    is_untouched(report, scene, swap, &before, &what)?;
    put_back(report, scene, swap, &what)?;
    let refused = called.map(drop).map_err(|error| error.to_string());
    restored(report, scene, &desk, &before, refused, &what)
}

/// A call exchanges a directory and its process is killed. The recovery meets the exchange, and
/// later its undoing.
fn killed_while_swapped(report: &mut Report, scene: &Scene, swap: Swap, chance: &mut Chance) -> Result<()> {
    let before = scene.before()?;
    let which = SWAPS.iter().position(|one| *one == swap).unwrap_or_default().to_string();
    let mut host = child::Heard::start(child::part("swaps", &[&"call", &scene.base, &which])?)?;
    let session = host.word("session")?.ok_or("the host ended early")?;
    host.ended()?;
    let what = format!("{swap:?} in a call that is killed");
    report.count("calls that were killed", 1);
    is_untouched(report, scene, swap, &before, &what)?;
    let recover = || child::run(child::part("swaps", &[&"recover", &scene.base, &session])?);
    if chance.once_in(2) {
        // The directory is exchanged again during the recovery.
        put_back(report, scene, swap, &what)?;
        let racing = Racing::start(scene, &[swap], chance);
        let recovered = recover()?;
        racing.stop(report, &what)?;
        is_untouched(report, scene, swap, &before, &format!("{what}, raced"))?;
        report.count("recoveries that were raced", 1);
        if recovered.is_ok() && swap != Swap::InnerForLink {
            is_restored(report, scene, &before, &format!("{what}, raced"))?;
        }
    } else {
        let recovered = recover()?;
        let what = format!("{what}, recovered while exchanged");
        is_untouched(report, scene, swap, &before, &what)?;
        put_back(report, scene, swap, &what)?;
        match recovered {
            Err(error) => {
                report.check(is_named(&error), || format!("{what}: refused without a name: {error}"))
            }
            Ok(_) => is_restored(report, scene, &before, &what)?,
        }
    }
    if let Err(error) = recover()? {
        report.broken(format!("{what}: once it is back it is not recovered: {error}"));
        return Ok(());
    }
    if swap == Swap::InnerForLink {
        // Changes that a race left inside count like any other. Only the session's own state is
        // checked.
        return Ok(());
    }
    is_restored(report, scene, &before, &what)
}

/// A call fails while a directory is exchanged all the time.
fn races(report: &mut Report, scene: &Scene, swap: Swap, chance: &mut Chance) -> Result<()> {
    let before = scene.before()?;
    let desk = Desk::at(&scene.base, &scene.root(), Durability::Boundary, None)?;
    let whole = desk.state().snapshot(None)?;
    let racing = Arc::new(parking::Slot::default());
    let (slot, within, seed) = (Arc::clone(&racing), scene.clone(), chance.number());
    let called = desk.call(move |context| {
        deed(context)?;
        slot.put(Racing::start(&within, &[swap], &mut Chance::new(seed)));
        Err(host::fails())
    });
    let what = format!("{swap:?}, raced");
    let exchanged = match racing.take() {
        Some(racing) => racing.stop(report, &what)?,
        None => 0,
    };
    report.count("calls that were raced", 1);
    report.count("exchanges", exchanged);
    is_untouched(report, scene, swap, &before, &what)?;
    let refused = called.map(drop).map_err(|error| error.to_string());
    if swap == Swap::InnerForLink {
        if desk.session.calls().is_interrupted() {
            let recovered = desk.recover();
            report.check(recovered.is_ok(), || format!("{what}: not recovered: {recovered:?}"));
        }
        let restored = desk.state().restore(&whole);
        report.check(restored.is_ok(), || format!("{what}: the snapshot is not restored: {restored:?}"));
        return is_restored(report, scene, &before, &what);
    }
    restored(report, scene, &desk, &before, refused, &what)
}

/// Passes a thread from the code that starts it to the code that stops it.
mod parking {
    use std::sync::Mutex;

    #[derive(Default)]
    pub(super) struct Slot(Mutex<Option<super::Racing>>);

    impl Slot {
        pub(super) fn put(&self, racing: super::Racing) {
            if let Ok(mut slot) = self.0.lock() {
                *slot = Some(racing);
            }
        }

        pub(super) fn take(&self) -> Option<super::Racing> {
            self.0.lock().ok().and_then(|mut slot| slot.take())
        }
    }
}

/// A thread that exchanges and undoes until it is stopped. Then everything is in its place.
struct Racing {
    stop: Arc<AtomicBool>,
    thread: thread::JoinHandle<(u64, Vec<String>)>,
}

impl Racing {
    fn start(scene: &Scene, swaps: &[Swap], chance: &mut Chance) -> Racing {
        let stop = Arc::new(AtomicBool::new(false));
        let (stopped, scene, swaps) = (Arc::clone(&stop), scene.clone(), swaps.to_vec());
        let mut chance = Chance::new(chance.number());
        let thread = thread::spawn(move || {
            let (mut exchanged, mut found) = (0, Vec::new());
            while !stopped.load(Ordering::Relaxed) {
                let Some(swap) = chance.one_of(&swaps).copied() else { break };
                if scene.swap(swap).is_ok() {
                    exchanged += 1;
                    thread::sleep(chance.moment(Duration::from_micros(400)));
                }
                match scene.put_back(swap) {
                    Ok(wrong) => found.extend(wrong),
                    Err(error) if swap != Swap::InnerForLink => found.push(format!("not put back: {error}")),
                    Err(_) => {}
                }
                thread::sleep(chance.moment(Duration::from_micros(200)));
            }
            (exchanged, found)
        });
        Racing { stop, thread }
    }

    fn stop(self, report: &mut Report, what: &str) -> Result<u64> {
        self.stop.store(true, Ordering::Relaxed);
        let (exchanged, found) = self.thread.join().map_err(|_| "the racing thread panicked")?;
        report.check(found.is_empty(), || format!("{what}: {}", found.join("; ")));
        Ok(exchanged)
    }
}

fn put_back(report: &mut Report, scene: &Scene, swap: Swap, what: &str) -> Result<()> {
    if let Some(wrong) = scene.put_back(swap)? {
        report.broken(format!("{what}: {wrong}"));
    }
    Ok(())
}

/// Checks that the victim is unchanged, at either place.
fn is_untouched(report: &mut Report, scene: &Scene, swap: Swap, before: &Before, what: &str) -> Result<()> {
    let moved = scene.parent().join("beside").exists() && !scene.victim().exists();
    let (victim, directory) = (scene.victim(), scene.victim().join("workspace"));
    let mut now = if moved { Tree::of(&scene.parent()) } else { Tree::of(&victim) };
    if swap == Swap::RootForDirectory && !directory.exists() {
        // Its directory is at the workspace's place.
        let place = scene.root();
        let lent = fs::rename(&place, &directory).and_then(|()| {
            now = Tree::of(&victim);
            fs::rename(&directory, &place)
        });
        lent?;
    }
    let found = before.victim.compare(&now?, Compared::ALL);
    report.check(found.is_none(), || format!("{what}: THE VICTIM: {}", found.unwrap_or_default()));
    Ok(())
}

/// Checks that the call was rolled back, or was refused by name and can be recovered now.
fn restored(
    report: &mut Report,
    scene: &Scene,
    desk: &Desk,
    before: &Before,
    called: std::result::Result<(), String>,
    what: &str,
) -> Result<()> {
    if let Err(error) = called {
        report.count("refused by name", 1);
        report.check(is_named(&error), || format!("{what}: refused without a name: {error}"));
        report.check(desk.session.calls().is_interrupted(), || {
            format!("{what}: refused, and not open for recovery: {error}")
        });
        if let Err(error) = desk.recover() {
            report.broken(format!("{what}: once it is back it is not recovered: {error}"));
            return Ok(());
        }
    }
    is_restored(report, scene, before, what)
}

fn is_restored(report: &mut Report, scene: &Scene, before: &Before, what: &str) -> Result<()> {
    // A capture fails if a directory is exchanged while it is read.
    place::clear_aside(report, &scene.root())?;
    let found = before.workspace.compare(&Tree::of(&scene.root())?, Compared::CONTENT);
    report.check(found.is_none(), || format!("{what}: the workspace: {}", found.unwrap_or_default()));
    Ok(())
}

fn is_named(error: &str) -> bool {
    error.contains("workspace")
}

/// Runs a call that is killed during an exchange, or a recovery.
pub(crate) fn part(arguments: &[String]) -> Result<()> {
    let [mode, base, argument] = arguments else { return Err("mode, directory, session or swap".into()) };
    let scene = Scene { base: PathBuf::from(base) };
    if mode == "recover" {
        let desk = Desk::at(&scene.base, &scene.root(), Durability::Boundary, Some(argument.parse()?))?;
        desk.recover()?;
        return Ok(());
    }
    let swap = *SWAPS.get(argument.parse::<usize>()?).ok_or("there is no such swap")?;
    let desk = Desk::at(&scene.base, &scene.root(), Durability::Boundary, None)?;
    writeln!(std::io::stdout().lock(), "session {}", desk.session.id())?;
    desk.call(move |context| {
        deed(context)?;
        scene.swap(swap)?;
        raise(Signal::SIGKILL).map_err(std::io::Error::from)?;
        Ok(())
    })?;
    Err("it was not killed".into())
}
