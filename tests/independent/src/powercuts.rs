//! Shuts an ext4 down without a flush while a session is written on it, and mounts it again: all
//! records that the durability promises are there. A workspace that a call restored is complete
//! once the call has returned.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

use foldlog::{Durability, SnapshotOptions};
use uuid::Uuid;

use crate::Plan;
use crate::chance::Chance;
use crate::child::{self, Heard};
use crate::host::{self, Desk, LEVELS, Level, Talk};
use crate::place::{self, Disk, Kind};
use crate::report::{Report, Result};
use crate::tree::{Compared, Tree};
use crate::verbs::Foldlog;

const DISK_BYTES: u64 = 160 << 20;

/// Lives of one session.
const LIVES: u64 = 12;

/// Largest number of records in a life, so that the disk can store them.
const RECORDS_MAX: u64 = 1_500;

/// Number of records between snapshots.
const SNAPSHOT_EACH: u64 = 7;

/// Wait after which records at `Process` are safe: a power cut may take "about the last second".
const SURELY_SYNCED: Duration = Duration::from_secs(3);

/// Commands that shut an ext4 down without writing out its journal, one for each program that can.
const SHUTDOWNS: [(&str, &[&str]); 3] = [
    (
        "perl",
        &["-e", "open(my $f,'<',$ARGV[0]) or die $!; my $b=pack('I',2); ioctl($f,0x8004587d,$b) or die $!"],
    ),
    (
        "python3",
        &[
            "-c",
            "import fcntl,os,struct,sys;fcntl.ioctl(os.open(sys.argv[1],os.O_RDONLY),0x8004587d,struct.pack('I',2))",
        ],
    ),
    ("xfs_io", &["-x", "-c", "shutdown"]),
];

pub(crate) fn run(plan: &Plan) -> Result<Report> {
    let mut report = Report::new("powercuts");
    let directory = place::directory(&plan.dir)?;
    let mut disk = match Disk::new(&plan.dir, Kind::Ext4, DISK_BYTES)? {
        Ok(disk) => disk,
        Err(reason) => {
            report.skip(format!("no ext4 can be mounted here: {reason}"));
            return Ok(report);
        }
    };
    let mut chance = Chance::new(plan.seed);
    let boot = Boot { file: directory.path().join("boot") };
    boot.again(&mut chance)?;
    if let Err(reason) = child::run(boot.command(&Command::new("true")))? {
        report.skip(format!("no boot id can be put in place of the machine's: {reason}"));
        return Ok(report);
    }
    let cuts = plan.rounds(12, 300);
    let mut lives: Vec<Option<Life>> = vec![None, None, None];
    for cut in 0..cuts {
        let which = usize::try_from(cut % 4).unwrap_or_default();
        let Some(level) = LEVELS.get(which).copied() else {
            if let Err(reason) = of_a_workspace(&mut report, &mut disk, &boot, cut, &mut chance)? {
                report.skip(reason);
                return Ok(report);
            }
            report.count("cuts behind a restored workspace", 1);
            continue;
        };
        let life = match lives.get_mut(which).and_then(Option::take) {
            Some(life) => life,
            None => Life::begin(&disk, level, chance.number())?,
        };
        match life.cut(&mut report, &mut disk, &boot, &mut chance)? {
            Ok(life) => {
                if let Some(kept) = lives.get_mut(which) {
                    *kept = life;
                }
            }
            Err(reason) => {
                report.skip(reason);
                return Ok(report);
            }
        }
        report.count(format!("cuts at {}", level.word), 1);
    }
    Ok(report)
}

/// The machine's boot id, which changes with a cut, as with a real one.
#[derive(Debug)]
struct Boot {
    file: PathBuf,
}

impl Boot {
    /// Restarts the machine.
    fn again(&self, chance: &mut Chance) -> Result<()> {
        let mut id = [0; 16];
        id.copy_from_slice(&chance.bytes(16));
        // A new file, since a running process may have mounted the old one.
        let _ = fs::remove_file(&self.file);
        fs::write(&self.file, format!("{}\n", uuid::Builder::from_random_bytes(id).into_uuid()))?;
        Ok(())
    }

    /// Returns the same command on a machine of that boot: the file replaces the system's boot id
    /// for this process alone.
    fn command(&self, command: &Command) -> Command {
        let script = "mount --bind \"$1\" /proc/sys/kernel/random/boot_id && shift && exec \"$@\"";
        let mut apart = Command::new("unshare");
        apart.args(["--mount", "--propagation", "private", "sh", "-c", script, "sh"]).arg(&self.file);
        apart.arg(command.get_program()).args(command.get_args());
        apart
    }
}

/// Shuts the disk down like a power cut. The error states why that is not possible here.
fn shut_down(root: &Path) -> std::result::Result<(), String> {
    let mut reasons = Vec::new();
    for (program, arguments) in SHUTDOWNS {
        match place::run(Command::new(program).args(arguments).arg(root)) {
            Ok(()) => return Ok(()),
            Err(reason) => reasons.push(reason),
        }
    }
    Err(format!("nothing here shuts an ext4 down: {}", reasons.join("; ")))
}

/// A session on the disk, across cuts.
#[derive(Clone, Debug)]
struct Life {
    word: &'static str,
    durability: Durability,
    id: Uuid,
    seed: u64,
    /// Number of records that were promised to be durable.
    durable: u64,
    /// Number of records that were read back after the last cut. They need not be durable.
    seen: u64,
    cuts: u64,
}

impl Life {
    fn begin(disk: &Disk, level: Level, seed: u64) -> Result<Life> {
        let Level { word, durability } = level;
        let session = host::store(&disk.root().join(word), durability)?.create(&host::types()?)?;
        let id = session.id();
        session.close()?;
        Ok(Life { word, durability, id, seed, durable: 0, seen: 0, cuts: 0 })
    }

    /// Makes one cut. Returns the life that continues after it, or `None` after the session's last
    /// cut.
    fn cut(
        mut self,
        report: &mut Report,
        disk: &mut Disk,
        boot: &Boot,
        chance: &mut Chance,
    ) -> Result<std::result::Result<Option<Life>, String>> {
        let word = self.word;
        let store = disk.root().join(word);
        let arguments =
            [&"log" as &dyn AsRef<_>, &store, &self.id.to_string(), &word, &self.seed.to_string()];
        let mut writer = Heard::start(boot.command(&child::part("powercuts", &arguments)?))?;
        let mut said = Vec::new();
        for _ in 0..chance.below(60) {
            let Some(line) = writer.line()? else { break };
            said.push(line);
        }
        let mut surely = None;
        if self.durability == Durability::Process && chance.once_in(4) {
            surely = said.len().checked_sub(1);
            thread::sleep(SURELY_SYNCED);
        } else {
            thread::sleep(chance.moment(Duration::from_millis(20)));
        }
        // Acknowledgements during the cut do not count: a sync may then end either way.
        said.extend(writer.so_far());
        let before_cut = said.len();
        if let Err(reason) = shut_down(&disk.root()) {
            return Ok(Err(reason));
        }
        writer.kill()?;
        said.extend(writer.rest());
        let mut as_it_went = self.seen;
        let (mut durable, mut acknowledged) = (self.durable, self.seen);
        for (at, line) in said.iter().enumerate() {
            let Some((what, n)) = line.split_once(' ') else { continue };
            let n = n.parse::<u64>().unwrap_or_default();
            let is_durable = match self.durability {
                Durability::Every => matches!(what, "ack" | "snapshot"),
                Durability::Boundary => what == "snapshot",
                Durability::Process => surely.is_some_and(|surely| at <= surely),
            };
            acknowledged = acknowledged.max(if what == "ack" { n + 1 } else { n });
            if is_durable && at >= before_cut {
                as_it_went = as_it_went.max(n);
            }
            if is_durable && at < before_cut {
                durable = durable.max(if what == "ack" { n + 1 } else { n });
            }
        }
        disk.unmount()?;
        disk.mount()?;
        boot.again(chance)?;
        let dir = store.join("sessions").join(self.id.to_string());
        let what = format!("{word}, cut {}", self.cuts);
        let read = boot.command(&child::part("powercuts", &[&"read", &dir, &self.seed.to_string()])?);
        let found: u64 = match child::run(read)? {
            Ok(lines) => lines.first().ok_or("no number")?.parse()?,
            Err(error) => {
                report.broken(format!("{what}: {durable} were durable, and it does not open: {error}"));
                return Ok(Ok(None));
            }
        };
        report.count("acknowledged as the power went, and gone", u64::from(found < as_it_went));
        report.check(found >= durable, || format!("{what}: {found} records where {durable} were durable"));
        report.check(found <= acknowledged + 1, || {
            format!("{what}: {found} records, {acknowledged} acknowledged")
        });
        report.count("acknowledged", acknowledged.saturating_sub(self.seen));
        report.count("durable", durable - self.durable);
        (self.durable, self.seen) = (durable, found);
        self.cuts += 1;
        if self.cuts < LIVES {
            return Ok(Ok(Some(self)));
        }
        host::store(&store, self.durability)?.delete(self.id)?;
        Ok(Ok(None))
    }
}

/// A call fails and is rolled back. The power is cut as soon as it has returned.
fn of_a_workspace(
    report: &mut Report,
    disk: &mut Disk,
    boot: &Boot,
    cut: u64,
    chance: &mut Chance,
) -> Result<std::result::Result<(), String>> {
    let base = disk.root().join(format!("desk-{cut}"));
    let root = base.join("workspace");
    fs::create_dir_all(root.join("inner/deep"))?;
    for n in 0..12 {
        let len = usize::try_from(chance.below(30_000)).unwrap_or_default();
        let directory = ["", "inner", "inner/deep"][n % 3];
        fs::write(root.join(directory).join(format!("{n}")), chance.bytes(len))?;
    }
    place::run(Command::new("sync").arg("-f").arg(&base))?;
    let before = Tree::of(&root)?;
    let seed = chance.number().to_string();
    let mut host = Heard::start(boot.command(&child::part("powercuts", &[&"workspace", &base, &seed])?))?;
    let told = host.word("rolled back")?;
    if chance.once_in(2) {
        // Another program's sync writes out the names of files, but not their contents.
        fs::File::create(disk.root().join("somebody's"))?.sync_all()?;
    } else {
        thread::sleep(chance.moment(Duration::from_millis(2)));
    }
    if let Err(reason) = shut_down(&disk.root()) {
        return Ok(Err(reason));
    }
    host.kill()?;
    let (_, errors) = host.ended()?;
    disk.unmount()?;
    disk.mount()?;
    boot.again(chance)?;
    let Some(id) = told else {
        report.broken(format!("workspace, cut {cut}: the host: {errors}"));
        return Ok(Ok(()));
    };
    // The end record of the call was durable, so there is nothing to recover, and the workspace is
    // restored.
    let found = before.compare(&Tree::of(&root)?, Compared::CONTENT);
    report.check(found.is_none(), || format!("workspace, cut {cut}: {}", found.unwrap_or_default()));
    let next = boot.command(&child::part("powercuts", &[&"next", &base, &id])?);
    if let Err(error) = child::run(next)? {
        report.broken(format!("workspace, cut {cut}: the next call: {error}"));
    }
    fs::remove_dir_all(&base)?;
    Ok(Ok(()))
}

/// Runs a writer, or a host whose call fails.
pub(crate) fn part(arguments: &[String]) -> Result<()> {
    let mut out = std::io::stdout().lock();
    match arguments {
        [mode, store, id, word, seed] if mode == "log" => {
            let durability = host::durability(word)?;
            let seed: u64 = seed.parse()?;
            let session = host::store(Path::new(store), durability)?.open_session_at(
                id.parse()?,
                &host::types()?,
                durability,
            )?;
            let first = session.view::<Talk>()?.len();
            for n in first..first + RECORDS_MAX {
                session.dispatch(host::said(seed, n))?;
                writeln!(out, "ack {n}")?;
                if n % SNAPSHOT_EACH == 0 {
                    session.snapshot(SnapshotOptions::default())?;
                    writeln!(out, "snapshot {}", n + 1)?;
                }
            }
            // Waits to be killed.
            let _ = std::io::stdin().read_line(&mut String::new());
            Ok(())
        }
        [mode, dir, seed] if mode == "read" => {
            let seed: u64 = seed.parse()?;
            let dir = Path::new(dir);
            let heard = host::heard(dir)?;
            if let Some((_, n)) = heard.iter().zip(0..).find(|(said, n)| **said != host::said(seed, *n)) {
                return Err(format!("record {n} is another").into());
            }
            let directory = place::directory(&std::env::temp_dir())?;
            let verified = Foldlog::new(None, directory.path()).plain(&[&"verify", &dir])?;
            if verified.code != Some(0) {
                return Err(format!("verify: {}", verified.stderr.text).into());
            }
            writeln!(out, "{}", heard.len())?;
            Ok(())
        }
        [mode, base, id] if mode == "next" => {
            let base = Path::new(base);
            let desk = Desk::at(base, &base.join("workspace"), Durability::Boundary, Some(id.parse()?))?;
            if desk.session.calls().is_interrupted() {
                return Err("the end of the call is lost".into());
            }
            desk.call(|_| Err(host::fails()))?;
            Ok(())
        }
        [mode, base, seed] if mode == "workspace" => {
            let mut chance = Chance::new(seed.parse()?);
            let base = Path::new(base);
            let root = base.join("workspace");
            let desk = Desk::at(base, &root, Durability::Boundary, None)?;
            let (bytes, synced) = (chance.bytes(5_000), !chance.once_in(4));
            let ended = desk.call(move |_| {
                fs::write(root.join("0"), &bytes)?;
                fs::remove_file(root.join("1"))?;
                fs::remove_dir_all(root.join("inner/deep"))?;
                fs::rename(root.join("3"), root.join("inner/three"))?;
                fs::create_dir(root.join("new"))?;
                fs::write(root.join("new/file"), &bytes)?;
                // Like a program that makes its own files durable: all of them survive the power
                // cut.
                if synced {
                    nix::unistd::syncfs(fs::File::open(&root)?).map_err(std::io::Error::from)?;
                }
                Err(host::fails())
            })?;
            if ended.success {
                return Err("it was committed".into());
            }
            writeln!(out, "rolled back {}", desk.session.id())?;
            // Waits to be killed.
            let _ = std::io::stdin().read_line(&mut String::new());
            Ok(())
        }
        _ => Err("mode, and what it needs".into()),
    }
}
