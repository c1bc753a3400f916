//! Tools that obstruct their own rollback: with a sparse file, a tree deeper than a process has
//! descriptors, or a forged mark. The call fails, or its process is killed and another one recovers
//! the session. Both end within the time limit, and the workspace is restored.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::Path;
use std::time::{Duration, Instant};

use foldlog::Durability;
use nix::sys::signal::{Signal, raise};

use crate::child::{self, Heard};
use crate::host::{self, Desk};
use crate::report::{Report, Result};
use crate::tree::{self, Compared, Tree};
use crate::{Plan, place};

/// Time limit of a call and of a recovery, on a machine that does other things too.
const WITHIN: Duration = Duration::from_secs(40);

/// The call's deadline, and the additional time for its rollback.
const DEADLINE: Duration = Duration::from_secs(2);
const GRACE: Duration = Duration::from_secs(10);

const MARK: &str = "user.foldlog.work";

type Deed = fn(&Path) -> io::Result<()>;

const OBSTACLES: [(&str, Deed); 6] = [
    ("a sparse file of 200 GiB", |root| File::create(root.join("sparse"))?.set_len(200 << 30)),
    ("ten sparse files of 8 GiB with a byte at their end", |root| {
        (0..10).try_for_each(|n| {
            let file = File::create(root.join(format!("sparse {n}")))?;
            std::os::unix::fs::FileExt::write_all_at(&file, b"x", 8 << 30)
        })
    }),
    ("a tree of 700 levels", |root| deep(root, 700)),
    ("a tree of 1,900 levels", |root| deep(root, 1_900)),
    ("20,000 files in one directory", |root| {
        (0..20_000).try_for_each(|n| File::create(root.join(format!("file {n}"))).map(drop))
    }),
    ("a forged mark", |root| tree::set_attribute(root, MARK, b"1 open durable forged")),
];

/// Endings of a call.
const ENDS: [&str; 3] = ["fails", "succeeds", "killed"];

pub(crate) fn run(plan: &Plan) -> Result<Report> {
    let mut report = Report::new("obstacles");
    let directory = place::directory(&plan.dir)?;
    for (which, (name, _)) in OBSTACLES.into_iter().enumerate() {
        for end in ENDS {
            let base = tempfile::tempdir_in(directory.path())?;
            one(&mut report, base.path(), which, name, end)?;
            // A path longer than the system's limit can only be removed step by step from within.
            place::run(std::process::Command::new("rm").arg("-rf").arg(base.path()))?;
        }
    }
    Ok(report)
}

fn one(report: &mut Report, base: &Path, which: usize, name: &str, end: &str) -> Result<()> {
    let what = format!("{name}, the call {end}");
    let root = base.join("workspace");
    fs::create_dir_all(root.join("inner"))?;
    fs::write(root.join("changed"), "as it was")?;
    fs::write(root.join("inner/removed"), "as it was")?;
    let before = Tree::of(&root)?;
    let command = child::part("obstacles", &[&"call", &base, &which.to_string(), &end])?;
    let mut host = Heard::start(command)?;
    let id = host.word("session")?.ok_or("the host ended early")?;
    let began = Instant::now();
    let ended = host.ended_within(WITHIN)?;
    let elapsed = began.elapsed();
    report.count("calls", 1);
    report.largest("longest call in ms", u64::try_from(elapsed.as_millis()).unwrap_or_default());
    report.check(ended.is_some(), || {
        format!("{what}: it did not return within {WITHIN:?}, its deadline was {DEADLINE:?}")
    });
    let said = host.rest();
    if said.iter().any(|line| line == "committed") {
        report.count("committed", 1);
        report.check(elapsed < DEADLINE + GRACE, || {
            format!("{what}: committed after {elapsed:?}, its deadline was {DEADLINE:?}")
        });
        return Ok(());
    }
    let rolled_back = said.iter().any(|line| line.starts_with("rolled back"));
    if !rolled_back {
        // It was killed, by itself or because it was late, or its restore failed: another process
        // recovers it.
        let began = Instant::now();
        match recovered(base, &id)? {
            Some(Ok(())) => {}
            Some(Err(error)) if error.contains(MARK) => {
                report.count("refused by the mark's name", 1);
                rustix::fs::lremovexattr(&root, MARK)?;
                let again = recovered(base, &id)?;
                report
                    .check(matches!(again, Some(Ok(()))), || format!("{what}: without the mark: {again:?}"));
            }
            Some(Err(error)) => report.broken(format!("{what}: not recovered: {error}")),
            None => report.broken(format!("{what}: its recovery did not return within {WITHIN:?}")),
        }
        report.largest(
            "longest recovery in ms",
            u64::try_from(began.elapsed().as_millis()).unwrap_or_default(),
        );
    }
    place::clear_aside(report, &root)?;
    let found = match Tree::of(&root) {
        Ok(now) => before.compare(&now, Compared::CONTENT),
        Err(error) => Some(error.to_string()),
    };
    report.check(found.is_none(), || format!("{what}: {} ({said:?})", found.unwrap_or_default()));
    Ok(())
}

/// Returns the result of recovering the session, or `None` if it did not end in time.
fn recovered(base: &Path, id: &str) -> Result<Option<std::result::Result<(), String>>> {
    let mut host = Heard::start(child::part("obstacles", &[&"recover", &base, &id, &""])?)?;
    Ok(host.ended_within(WITHIN)?.map(|(status, errors)| if status.success() { Ok(()) } else { Err(errors) }))
}

/// Makes this many nested directories, the last of them with a file.
fn deep(root: &Path, levels: usize) -> io::Result<()> {
    let mut path = root.to_owned();
    path.extend((0..levels).map(|_| "d"));
    fs::create_dir_all(&path)?;
    fs::write(path.join("f"), "at the bottom")
}

pub(crate) fn part(arguments: &[String]) -> Result<()> {
    let [mode, base, argument, end] = arguments else { return Err("mode, directory, which, end".into()) };
    let base = Path::new(base);
    let root = base.join("workspace");
    if mode == "recover" {
        return Ok(Desk::at(base, &root, Durability::Boundary, Some(argument.parse()?))?.recover()?);
    }
    let (_, deed) = *OBSTACLES.get(argument.parse::<usize>()?).ok_or("there is no such obstacle")?;
    let desk = Desk::at(base, &root, Durability::Boundary, None)?;
    let mut out = io::stdout().lock();
    writeln!(out, "session {}", desk.session.id())?;
    let end = end.clone();
    let called = desk.call_within(Some(DEADLINE), move |_| {
        fs::write(root.join("changed"), "by the tool")?;
        fs::remove_dir_all(root.join("inner"))?;
        deed(&root)?;
        match end.as_str() {
            "succeeds" => Ok(()),
            "killed" => raise(Signal::SIGKILL).map_err(|error| io::Error::from(error).into()),
            _ => Err(host::fails()),
        }
    });
    match called {
        Ok(report) if report.success => writeln!(out, "committed")?,
        Ok(report) => writeln!(out, "rolled back {}", report.message)?,
        // A call that its deadline or a budget ended was rolled back, unless it is still open.
        Err(error) if !desk.session.calls().is_interrupted() => writeln!(out, "rolled back {error}")?,
        Err(error) => writeln!(out, "left open {error}")?,
    }
    Ok(())
}
