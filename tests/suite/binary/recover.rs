//! `foldlog recover`: restores the half-done work of a killed process without its host.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use foldlog::filesystem::{Filesystem, HostFilesystem, HostFilesystemOptions};
use foldlog::inspect::{LogReader, OperationStatus};
use foldlog::tools::{
    ExecuteOptions, Tool, ToolCall, ToolContext, ToolError, ToolRegistry, ToolResult, ToolRunner,
};
use foldlog::{ExecutionState, ResourceRegistry, Store};
use foldlog_test_support::child;
use foldlog_test_support::host::types;
use foldlog_test_support::runs::Json;
use foldlog_tests::verbs::{Ran, foldlog};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rustix::fs::{XattrFlags, getxattr, setxattr};

use super::step;

/// Writes half of its output, and is killed with its process.
struct Dies;

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct Nothing {}

impl Tool for Dies {
    const NAME: &'static str = "dies";
    type Parameters = Nothing;
    type Output = ();

    fn call(&self, _: Nothing, context: &ToolContext) -> Result<ToolResult<()>, ToolError> {
        let files = context.resources().get::<dyn Filesystem>().unwrap();
        files.write("page", b"half done")?;
        files.write("left out/of it", b"stays")?;
        context.session().dispatch(step("half done", 1))?;
        kill(Pid::this(), Signal::SIGKILL).unwrap();
        Ok(ToolResult::ok("nobody hears this", ()))
    }
}

#[test]
#[ignore = "a part of another test, which runs it in a process of its own"]
fn part_of_a_child_that_is_killed_within_its_call() {
    let Some(argument) = child::argument() else { return };
    let (snapshots, directory) = argument.split_once(' ').unwrap();
    let directory = Path::new(directory);
    let session = Store::open(directory.join("store")).unwrap().create(&types()).unwrap();
    session.dispatch(step("before", 1)).unwrap();
    let snapshots = match snapshots {
        "within" => session.dir().join("files"),
        _ => directory.join("snapshots"),
    };
    let options = HostFilesystemOptions::default().leave_out("left out");
    let files = HostFilesystem::open(directory.join("workspace"), snapshots, options).unwrap();
    let resources = ResourceRegistry::builder().filesystem(Arc::new(files)).build().unwrap();
    let runner = ToolRunner::new(ExecutionState::new(session, resources), ToolRegistry::new().with(Dies));
    let _ = runner.execute(&ToolCall::new("dies", "{}").with_id("call_1"), &ExecuteOptions::default());
    unreachable!("it was killed");
}

struct Killed {
    directory: tempfile::TempDir,
    session: PathBuf,
}

impl Killed {
    /// A session that was killed within its call; its snapshots are in its own directory, or
    /// outside.
    fn with_snapshots(place: &str) -> Killed {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir(directory.path().join("workspace")).unwrap();
        fs::write(directory.path().join("workspace/page"), "as it was").unwrap();
        let part = "binary::recover::part_of_a_child_that_is_killed_within_its_call";
        child::start(part, &format!("{place} {}", directory.path().display())).ended();
        let id = Store::open(directory.path().join("store")).unwrap().session_ids().unwrap()[0];
        let session = directory.path().join("store/sessions").join(id.to_string());
        let killed = Killed { directory, session };
        assert_eq!((killed.page().as_str(), killed.fate()), ("half done", OperationStatus::Open));
        killed
    }

    fn root(&self) -> PathBuf {
        self.directory.path().join("workspace")
    }

    fn page(&self) -> String {
        fs::read_to_string(self.root().join("page")).unwrap()
    }

    fn fate(&self) -> OperationStatus {
        LogReader::open(&self.session).unwrap().ledger().unwrap()[0].outcome
    }

    fn recover(&self, options: &[&str]) -> Ran {
        let words = ["recover", self.session.to_str().unwrap()];
        foldlog(words.iter().chain(options).map(|word| (*word).to_owned()))
    }

    fn workspace(&self) -> String {
        format!("workspace={}", self.root().display())
    }

    #[track_caller]
    fn is_recovered(&self) {
        assert_eq!((self.page().as_str(), self.fate()), ("as it was", OperationStatus::Interrupted));
        assert!(self.root().join("left out/of it").exists(), "what snapshots leave out is left alone");
    }
}

/// Only the host could restore the files, and a missing host, or one that fails while it opens,
/// could not.
#[test]
fn what_a_killed_host_left_half_done_is_restored_without_it() {
    let killed = Killed::with_snapshots("within");
    let ran = killed.recover(&["--workspace", &killed.workspace()]);
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(ran.stdout.contains("workspace `workspace` is as it was before the call"), "{}", ran.stdout);
    assert!(
        ran.stdout.contains("(`dies`) was ended as interrupted") && ran.stdout.contains("`foldlog ledger /"),
        "{}",
        ran.stdout
    );
    killed.is_recovered();
    // Nothing remains to be restored, and a person decides about the call.
    let again = killed.recover(&[]);
    assert_eq!(again.code, 0, "{again:?}");
    assert!(again.stdout.contains("has no open calls"), "{}", again.stdout);
    let session = killed.session.to_str().unwrap();
    let operation = LogReader::open(&killed.session).unwrap().ledger().unwrap()[0].operation.to_string();
    // A decision needs a person and a reason.
    for (by, reason, blank) in [("", "unsent", "--by <WHO>"), ("me", " ", "--reason <WHY>")] {
        let ran = foldlog(["settle", session, &operation, "failed", "--by", by, "--reason", reason]);
        assert!(ran.code == 2 && ran.stderr.contains(blank) && ran.stderr.contains("it is blank"), "{ran:?}");
    }
    let settled = foldlog(["settle", session, &operation, "failed", "--by", "me", "--reason", "unsent"]);
    assert_eq!(settled.code, 0, "{settled:?}");
    assert_eq!(foldlog(["verify", session]).code, 0);
    assert_eq!(foldlog(["replay", session, "--thorough"]).code, 0);
}

#[test]
fn a_workspace_that_nobody_names_is_asked_for_and_nothing_is_changed() {
    let killed = Killed::with_snapshots("beside");
    for (options, said) in [
        (vec![], format!("--workspace workspace={}", killed.root().canonicalize().unwrap().display())),
        (
            vec!["--workspace".to_owned(), killed.root().display().to_string()],
            "--snapshots workspace=DIR".to_owned(),
        ),
    ] {
        let options: Vec<&str> = options.iter().map(String::as_str).collect();
        let ran = killed.recover(&options);
        assert!(ran.code == 2 && ran.stderr.contains(&said), "{ran:?}");
        assert_eq!((killed.page().as_str(), killed.fate()), ("half done", OperationStatus::Open));
    }
    // A mistyped path became an empty store of captures.
    let (missing, root) = (killed.directory.path().join("snapshot"), killed.root());
    let options = ["--workspace", root.to_str().unwrap(), "--snapshots", missing.to_str().unwrap()];
    let ran = killed.recover(&options);
    assert!(ran.code == 2 && ran.stderr.contains("--snapshots workspace=DIR"), "{ran:?}");
    assert!(!missing.exists());
    // The name of a single workspace may be left out.
    let (root, snapshots) = (killed.root(), killed.directory.path().join("snapshots"));
    let options =
        ["--workspace", root.to_str().unwrap(), "--snapshots", snapshots.to_str().unwrap(), "--json"];
    let ran = killed.recover(&options);
    assert_eq!(ran.code, 0, "{ran:?}");
    let document: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(document["ended"][0]["tool"], "dies");
    assert_eq!(document["ended"][0]["call_id"], "call_1");
    assert_eq!(document["unsettled"][0]["operation"], document["ended"][0]["operation"]);
    assert_eq!(document["workspaces"][0]["name"], "workspace");
    assert!(
        document["not_undone"] == serde_json::json!([])
            && document["workspaces"][0]["removed_mark"].is_null()
    );
    killed.is_recovered();
}

/// A manual repair between a crash and the recovery disappeared without a message.
#[test]
fn a_repair_by_hand_before_a_recovery_is_named_and_an_undo_brings_it_back() {
    let killed = Killed::with_snapshots("within");
    fs::write(killed.root().join("page"), "repaired").unwrap();
    fs::write(killed.root().join("notes"), "mine").unwrap();
    let workspace = killed.workspace();
    let ran = killed.recover(&["--workspace", &workspace]);
    assert_eq!(ran.code, 0, "{ran:?}");
    for said in ["replaced in `workspace`: page", "removed in `workspace`: notes", "foldlog rewind", "--undo"]
    {
        assert!(ran.stdout.contains(said), "{said}: {}", ran.stdout);
    }
    killed.is_recovered();
    assert!(!killed.root().join("notes").exists());
    let session = killed.session.to_str().unwrap();
    let ledger = foldlog(["ledger", session]);
    assert!(ledger.stdout.contains("rolled back in workspace: page, "), "{}", ledger.stdout);
    assert!(ledger.stdout.contains("notes (removed)"), "{}", ledger.stdout);
    let undo = ["rewind", session, "--undo", "--workspace", &workspace];
    let preview = foldlog(undo.iter().copied().chain(["--preview"]));
    assert!(
        preview.stdout.contains("would bring back the files that the rollback of operation"),
        "{preview:?}"
    );
    let undone = foldlog(undo.iter().copied().chain(["--by", "me", "--reason", "it was mine"]));
    assert_eq!(undone.code, 0, "{undone:?}");
    let notes = fs::read_to_string(killed.root().join("notes")).unwrap();
    assert_eq!((killed.page().as_str(), notes.as_str()), ("repaired", "mine"));
    assert_eq!(foldlog(["verify", session]).code, 0);
    assert_eq!(foldlog(["replay", session, "--thorough"]).code, 0);
}

/// A tool that wrote into its workspace's mark, and whose process was killed then, blocked the
/// recovery of its own session, and no message named the mark.
#[test]
fn a_mark_that_a_tool_forged_is_named_and_removed_by_force_alone() {
    let killed = Killed::with_snapshots("within");
    if setxattr(killed.root(), "user.foldlog.work", b"forged", XattrFlags::empty()).is_err() {
        foldlog_test_support::skipped("the directory for temporary files takes no extended attributes");
        return;
    }
    let workspace = killed.workspace();
    let refused = killed.recover(&["--workspace", &workspace]);
    assert_eq!((refused.code, killed.fate()), (2, OperationStatus::Open));
    for fact in ["user.foldlog.work", "--force", killed.root().to_str().unwrap()] {
        assert!(refused.stderr.contains(fact), "{}", refused.stderr);
    }
    let forced = killed.recover(&["--workspace", &workspace, "--force"]);
    assert_eq!(forced.code, 0, "{forced:?}");
    assert!(forced.stderr.contains("removed the mark `user.foldlog.work`"), "{}", forced.stderr);
    assert!(forced.stderr.contains("which said: forged"), "{}", forced.stderr);
    killed.is_recovered();
}

/// Any directory at the old path was emptied, and the snapshot was written into it.
#[test]
fn a_workspace_that_was_replaced_is_restored_into_the_directory_that_a_person_names() {
    let killed = Killed::with_snapshots("within");
    let other = killed.directory.path().join("other");
    fs::rename(killed.root(), killed.directory.path().join("elsewhere")).unwrap();
    fs::create_dir(killed.root()).unwrap();
    fs::write(killed.root().join("page"), "of somebody else").unwrap();
    fs::create_dir(&other).unwrap();
    let is_refused = |options: &[&str], said: &str| {
        let ran = killed.recover(options);
        assert!(ran.code == 2 && ran.stderr.contains(said), "{ran:?}");
        assert_eq!((killed.page().as_str(), killed.fate()), ("of somebody else", OperationStatus::Open));
    };
    is_refused(&["--workspace", &killed.workspace()], "with `--rebind` of `foldlog recover`");
    is_refused(&["--rebind", &killed.workspace()], "not empty");
    is_refused(&["--rebind", &killed.workspace()], "add --overwrite");
    let misnamed = format!("elsewhere={}", killed.root().display());
    is_refused(
        &["--workspace", &misnamed],
        "names no workspace of the session; its workspaces are `workspace`",
    );
    let both = ["--workspace", &killed.workspace(), "--rebind", &other.display().to_string()];
    is_refused(&both, "by --workspace and by --rebind");
    is_refused(&["--workspace", &killed.workspace(), "--overwrite"], "--rebind");

    let rebound = killed.recover(&["--rebind", &other.display().to_string(), "--json"]);
    assert_eq!(rebound.code, 0, "{rebound:?}");
    let told: serde_json::Value = serde_json::from_str(&rebound.stdout).unwrap();
    assert_eq!(told["workspaces"][0]["rebound"], true);
    assert_eq!(told["workspaces"][0]["overwritten"], false);
    assert_eq!(fs::read_to_string(other.join("page")).unwrap(), "as it was");
    assert_eq!((killed.page().as_str(), killed.fate()), ("of somebody else", OperationStatus::Interrupted));

    let killed = Killed::with_snapshots("within");
    fs::rename(killed.root(), killed.directory.path().join("elsewhere")).unwrap();
    fs::create_dir(killed.root()).unwrap();
    fs::write(killed.root().join("more"), "of no worth").unwrap();
    let ran = killed.recover(&["--rebind", &killed.workspace(), "--overwrite"]);
    assert_eq!(ran.code, 0, "{ran:?}");
    assert_eq!((killed.page().as_str(), killed.fate()), ("as it was", OperationStatus::Interrupted));
    assert!(!killed.root().join("more").exists());
    let said = format!(
        "workspace `workspace`: {} replaces the call's directory; files in it that the capture does not contain were removed",
        killed.root().display()
    );
    assert!(ran.stdout.contains(&said), "{}", ran.stdout);
    // The printed command brings the removed files back: with --workspace it was refused.
    assert!(ran.stdout.contains("--rebind NAME=DIR` brings these files back"), "{}", ran.stdout);
    let session = killed.session.to_str().unwrap();
    let words = ["rewind", session, "--undo", "--by", "me", "--reason", "it was mine", "--rebind"];
    let undone = foldlog(words.into_iter().map(str::to_owned).chain([killed.workspace()]));
    assert_eq!(undone.code, 0, "{undone:?}");
    assert_eq!(fs::read_to_string(killed.root().join("more")).unwrap(), "of no worth");
}

/// A session without an open call was blocked by the mark of another one, and `--force` silently
/// did nothing.
#[test]
fn a_mark_is_removed_by_force_also_for_a_session_that_has_no_open_call() {
    const MARK: &str = "user.foldlog.work";
    let killed = Killed::with_snapshots("within");
    let bears_mark = || getxattr(killed.root(), MARK, &mut [0; 4352][..]).is_ok();
    if !bears_mark() {
        foldlog_test_support::skipped("the directory for temporary files takes no extended attributes");
        return;
    }
    let session = Store::open(killed.directory.path().join("another")).unwrap().create(&types()).unwrap();
    let new = session.dir().display().to_string();
    session.close().unwrap();
    let recover = |options: &[&str]| {
        let ran = foldlog(["recover", &new].iter().chain(options).map(|word| (*word).to_owned()));
        assert!(ran.code == 0 && ran.stdout.contains("has no open calls"), "{ran:?}");
        ran
    };
    for (options, said) in [
        (["--workspace", &killed.workspace()], "nothing was changed"),
        (["--rebind", &killed.workspace()], "nothing was changed"),
    ] {
        let ran = recover(&options);
        assert!(ran.stderr.contains(said) && bears_mark(), "{}", ran.stderr);
    }
    let ran = recover(&["--force"]);
    assert!(ran.stderr.contains("no mark was removed") && bears_mark(), "{}", ran.stderr);
    assert_eq!(recover(&[]).stderr, "");

    let ran = recover(&["--workspace", &killed.workspace(), "--force"]);
    let holder = killed.session.file_name().unwrap().to_str().unwrap();
    assert!(ran.stderr.contains("removed the mark `user.foldlog.work`"), "{}", ran.stderr);
    assert!(ran.stderr.contains("which said: ") && ran.stderr.contains(holder), "{}", ran.stderr);
    assert!(!bears_mark());
    let ran = recover(&["--workspace", &killed.root().display().to_string(), "--force"]);
    assert!(ran.stderr.contains("has no mark"), "{}", ran.stderr);
    // Nothing else was changed, and the session whose work is half done is recovered as before.
    assert_eq!((killed.page().as_str(), killed.fate()), ("half done", OperationStatus::Open));
    assert_eq!(killed.recover(&["--workspace", &killed.workspace()]).code, 0);
    killed.is_recovered();
}

/// The mark of a directory that was named by mistake was removed before the mistake was found. Then
/// other sessions worked on files that the mark's own session had left half done.
#[test]
fn the_mark_of_another_workspace_is_kept_where_that_is_named_by_mistake() {
    let (killed, other) = (Killed::with_snapshots("within"), Killed::with_snapshots("within"));
    let mistaken = format!("workspace={}", other.root().display());
    let refused = killed.recover(&["--workspace", &mistaken, "--force"]);
    assert!(refused.code == 2 && refused.stderr.contains("--rebind"), "{refused:?}");
    assert_eq!(
        (other.page().as_str(), killed.fate(), other.fate()),
        ("half done", OperationStatus::Open, OperationStatus::Open)
    );
    let mut mark = [0; 5_000];
    rustix::fs::getxattr(other.root(), "user.foldlog.work", &mut mark[..]).expect("its mark is there");
}

#[test]
fn a_path_that_is_no_text_is_told_in_json_as_well() {
    use std::os::unix::ffi::OsStrExt;
    let killed = Killed::with_snapshots("within");
    let odd = killed.directory.path().join(std::ffi::OsStr::from_bytes(b"odd \xff"));
    fs::rename(killed.root(), &odd).unwrap();
    let link = killed.directory.path().join("link");
    std::os::unix::fs::symlink(&odd, &link).unwrap();
    let ran = killed.recover(&["--workspace", link.to_str().unwrap(), "--json"]);
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""), "{ran:?}");
    let told: serde_json::Value = serde_json::from_str(&ran.stdout).unwrap();
    assert!(told["workspaces"][0]["root"].as_str().unwrap().ends_with("odd \\xff"), "{told}");
    assert_eq!(fs::read_to_string(odd.join("page")).unwrap(), "as it was");
}

/// No message named the path of an interrupted session's workspace.
#[test]
fn the_path_of_the_workspace_is_told_to_whoever_recovers() {
    let killed = Killed::with_snapshots("within");
    let root = killed.root().canonicalize().unwrap().display().to_string();
    let refused = killed.recover(&[]);
    assert_eq!(refused.code, 2, "{}", refused.stderr);
    assert!(refused.stderr.contains(&format!("it was last {root}")), "{}", refused.stderr);
    let store = killed.directory.path().join("store");
    let listed = foldlog(["sessions".as_ref(), store.as_os_str()]);
    assert!(listed.stdout.contains(&format!(" in {root}")), "{}", listed.stdout);
    let listed = foldlog(["sessions".as_ref(), store.as_os_str(), "--json".as_ref()]);
    let listed = Json::parse(&listed.stdout);
    let workspaces = listed.get("open").unwrap().elements()[0].get("workspaces").cloned();
    assert_eq!(workspaces.unwrap().get("workspace"), Some(&Json::text(&root)));
    // The output contains the complete command.
    let next = refused.stderr.split("give its directory: ").nth(1).unwrap().trim().to_owned();
    let options: Vec<&str> = next.split(' ').collect();
    assert_eq!(killed.recover(&options).code, 0);
    killed.is_recovered();
}
