//! Ownership and modes under several users: the result of a restore by root, files that a restore
//! by another user must not create, and the files of a store that another user can read.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;

use foldlog::Durability;

use crate::child;
use crate::host::{self, Desk};
use crate::report::{Report, Result};
use crate::tree::{Compared, Tree};
use crate::{Plan, place};

/// Two users that need not be known to the system.
const ONE: u32 = 1_000;
const OTHER: u32 = 1_001;

/// Files with their owner, group and mode.
const FILES: [(&str, u32, u32, u32); 9] = [
    ("private of one", ONE, ONE, 0o600),
    ("private of the other", OTHER, OTHER, 0o600),
    ("setuid of one", ONE, ONE, 0o4755),
    ("setgid of the other", ONE, OTHER, 0o2755),
    ("both of the other", OTHER, ONE, 0o6711),
    ("unreadable of one", ONE, ONE, 0o000),
    ("sticky of root", 0, 0, 0o1644),
    ("setuid of root", 0, 0, 0o4755),
    ("group's", 0, ONE, 0o640),
];

/// A change by root's tool to each of them.
type Deed = fn(&Path) -> std::io::Result<()>;

const SECRET: &str = "what nobody but its owner may read";

pub(crate) fn run(plan: &Plan) -> Result<Report> {
    let mut report = Report::new("owners");
    if !place::is_root() {
        report.skip("only root can work as several users");
        return Ok(report);
    }
    let works = as_user(ONE, "022", &Command::new("true")).status();
    if !works.is_ok_and(|status| status.success()) {
        report.skip("`setpriv` cannot become another user here");
        return Ok(report);
    }
    let directory = place::directory(&plan.dir)?;
    by_root(&mut report, &directory.path().join("root"))?;
    by_a_user(&mut report, &directory.path().join("user"))?;
    for umask in ["022", "000", "077"] {
        read_by_another(&mut report, &directory.path().join(umask), umask)?;
    }
    Ok(report)
}

/// Returns the same command as another user.
fn as_user(user: u32, umask: &str, command: &Command) -> Command {
    let mut run = Command::new("setpriv");
    run.arg(format!("--reuid={user}")).arg(format!("--regid={user}")).arg("--clear-groups");
    run.args(["sh", "-c", &format!("umask {umask}; exec \"$@\""), "sh"]);
    run.arg(command.get_program()).args(command.get_args());
    run
}

fn furnish(root: &Path) -> Result<()> {
    fs::create_dir_all(root)?;
    for (name, uid, gid, mode) in FILES {
        make(&root.join(name), uid, gid, mode)?;
    }
    let directory = root.join("directory of the other");
    fs::create_dir(&directory)?;
    make(&directory.join("within"), ONE, OTHER, 0o4711)?;
    chown(&directory, Some(OTHER), Some(ONE))?;
    fs::set_permissions(&directory, Permissions::from_mode(0o2770))?;
    Ok(())
}

fn make(path: &Path, uid: u32, gid: u32, mode: u32) -> Result<()> {
    fs::write(path, SECRET)?;
    chown(path, Some(uid), Some(gid))?;
    fs::set_permissions(path, Permissions::from_mode(mode))?;
    Ok(())
}

/// Root's tool changes, removes and takes over files of others, and fails.
fn by_root(report: &mut Report, base: &Path) -> Result<()> {
    let deeds: [(&str, Deed); 5] = [
        ("removed", |path| if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) }),
        ("written", |path| if path.is_dir() { Ok(()) } else { fs::write(path, "by the tool") }),
        ("made anew", |path| {
            if path.is_dir() {
                fs::remove_dir_all(path)?
            } else {
                fs::remove_file(path)?
            }
            fs::write(path, "by the tool")
        }),
        ("given away", |path| chown(path, Some(0), Some(0))),
        ("opened up", |path| fs::set_permissions(path, Permissions::from_mode(0o777))),
    ];
    for (what, deed) in deeds {
        let base = base.join(what);
        let root = base.join("workspace");
        furnish(&root)?;
        let before = Tree::of(&root)?;
        let desk = Desk::at(&base, &root, Durability::Boundary, None)?;
        let within = root.clone();
        let called = desk.call(move |_| {
            for entry in fs::read_dir(&within)? {
                deed(&entry?.path())?;
            }
            Err(host::fails())
        });
        report.count("calls by root", 1);
        report.check(called.is_ok(), || format!("{what} by root: not rolled back: {called:?}"));
        let compared = Compared { owners: true, ..Compared::CONTENT };
        let found = before.compare(&Tree::of(&root)?, compared);
        report.check(found.is_none(), || format!("{what} by root: {}", found.unwrap_or_default()));
    }
    Ok(())
}

/// A user's tool removes another user's files, whose ownership that user cannot restore. None may
/// become setuid or setgid of a different user or group.
fn by_a_user(report: &mut Report, base: &Path) -> Result<()> {
    let root = base.join("workspace");
    furnish(&root)?;
    // Files that the user may not read are no part of the capture.
    for (name, ..) in
        FILES.iter().filter(|(name, ..)| name.contains("private") || name.contains("unreadable"))
    {
        fs::remove_file(root.join(name))?;
    }
    fs::remove_dir_all(root.join("directory of the other"))?;
    for path in [base, root.as_path()] {
        chown(path, Some(ONE), Some(ONE))?;
    }
    for name in ["group's", "both of the other"] {
        let mode = fs::metadata(root.join(name))?.mode();
        fs::set_permissions(root.join(name), Permissions::from_mode(mode | 0o044))?;
    }
    let before = Tree::of(&root)?;
    let ended = child::run(as_user(ONE, "022", &child::part("owners", &[&"remove", &base])?))?;
    report.count("calls by a user", 1);
    let reported = match &ended {
        Ok(lines) => lines.join("\n"),
        Err(error) => error.clone(),
    };
    let mut lost = Vec::new();
    for (name, uid, gid, mode) in FILES {
        let Ok(found) = fs::symlink_metadata(root.join(name)) else { continue };
        let same = (found.uid(), found.gid()) == (uid, gid);
        // A setuid or setgid file keeps its original owner or group, or loses the bit.
        let setuid_of_another = found.mode() & 0o4000 != 0 && found.uid() != uid;
        let setgid_of_another = found.mode() & 0o2000 != 0 && found.gid() != gid;
        report.check(!setuid_of_another && !setgid_of_another, || {
            format!(
                "`{name}` was {mode:o} of {uid}:{gid} and is {:o} of {}:{}",
                found.mode(),
                found.uid(),
                found.gid()
            )
        });
        if !same && mode & 0o6000 != 0 {
            lost.push(name);
        }
    }
    report.fact(format!("by a user: {} lost their owner and setuid or setgid: {reported}", lost.len()));
    let none = Compared { modes: false, ..Compared::CONTENT };
    let found = before.compare(&Tree::of(&root)?, none);
    report.check(found.is_none(), || format!("removed by a user: {}", found.unwrap_or_default()));
    Ok(())
}

/// One user writes a session over a workspace with a private file. Another one tries to read all
/// resulting files.
fn read_by_another(report: &mut Report, base: &Path, umask: &str) -> Result<()> {
    let root = base.join("workspace");
    fs::create_dir_all(&root)?;
    make(&root.join("private"), ONE, ONE, 0o600)?;
    for path in [base, root.as_path()] {
        chown(path, Some(ONE), Some(ONE))?;
    }
    if let Err(error) = child::run(as_user(ONE, umask, &child::part("owners", &[&"write", &base])?))? {
        report.broken(format!("umask {umask}: the writer: {error}"));
        return Ok(());
    }
    let mut paths = Vec::new();
    for directory in ["store", "captures"] {
        all_below(&base.join(directory), &mut paths)?;
    }
    let list = base.join("paths");
    let lines: Vec<_> = paths.iter().map(|path| path.display().to_string()).collect();
    fs::write(&list, lines.join("\n"))?;
    report.count("files and directories of a store", paths.len() as u64);
    match child::run(as_user(OTHER, "022", &child::part("owners", &[&"read", &list])?))? {
        Ok(read) => report.check(read.is_empty(), || {
            format!(
                "umask {umask}: another user read {} of {}: {}",
                read.len(),
                paths.len(),
                read.iter().take(3).cloned().collect::<Vec<_>>().join("; ")
            )
        }),
        Err(error) => report.broken(format!("umask {umask}: the reader: {error}")),
    }
    let open: Vec<_> = paths
        .iter()
        .filter_map(|path| fs::symlink_metadata(path).ok().map(|found| (path, found)))
        .filter(|(_, found)| found.mode() & 0o077 != 0)
        .map(|(path, found)| format!("{} is {:o}", path.display(), found.mode() & 0o7777))
        .collect();
    report.check(open.is_empty(), || {
        format!(
            "umask {umask}: {} of {} give others something: {}",
            open.len(),
            paths.len(),
            open.iter().take(3).cloned().collect::<Vec<_>>().join("; ")
        )
    });
    Ok(())
}

fn all_below(directory: &Path, paths: &mut Vec<PathBuf>) -> Result<()> {
    paths.push(directory.to_owned());
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            all_below(&entry.path(), paths)?;
        } else {
            paths.push(entry.path());
        }
    }
    Ok(())
}

/// Runs a writer, a reader or a tool's host, as another user.
pub(crate) fn part(arguments: &[String]) -> Result<()> {
    let [mode, argument] = arguments else { return Err("mode, path".into()) };
    let path = Path::new(argument);
    let root = path.join("workspace");
    match mode.as_str() {
        "write" => {
            let desk = Desk::at(path, &root, Durability::Boundary, None)?;
            for n in 0..300 {
                desk.session.dispatch(host::said(n, n))?;
            }
            desk.call(|_| Ok(()))?;
            desk.call(|_| Err(host::fails()))?;
            let session = desk.session.clone();
            drop(desk);
            session.close()?;
        }
        "read" => {
            for path in fs::read_to_string(path)?.lines().map(Path::new) {
                if fs::read_dir(path).is_ok() || fs::read(path).is_ok() {
                    println!("{}", path.display());
                }
            }
        }
        "remove" => {
            let desk = Desk::at(path, &root, Durability::Boundary, None)?;
            let report = desk.call(move |_| {
                let removed = fs::read_dir(&root)?.map(|entry| fs::remove_file(entry?.path()));
                removed.collect::<std::io::Result<Vec<()>>>()?;
                Err(host::fails())
            })?;
            println!("{report:?}");
        }
        _ => return Err("there is no such mode".into()),
    }
    Ok(())
}
