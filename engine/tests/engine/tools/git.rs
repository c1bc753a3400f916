//! Calls that use git in the workspace and fail, or are killed.

use std::fs;
use std::path::{Path, PathBuf};

use foldlog::filesystem::{HostFilesystem, HostFilesystemOptions};
use foldlog::{Durability, NotUndone};
use foldlog_test_support::child;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::*;
use crate::filesystem::digest;
use crate::filesystem::git::{files_of, is_sound, shell, stands};

/// Runs a shell script in the workspace, and fails or is killed.
struct Shell(PathBuf);

#[derive(Serialize, Deserialize, JsonSchema)]
struct Script {
    script: String,
    then: Then,
}

impl Tool for Shell {
    const NAME: &'static str = "shell";
    type Parameters = Script;
    type Output = ();

    fn call(&self, Script { script, then }: Script, _: &ToolContext) -> Result<ToolResult<()>, ToolError> {
        shell(&self.0, &script);
        match then {
            Then::Die => kill(Pid::this(), Signal::SIGKILL).unwrap(),
            Then::Fail => return Err(ToolError::failed("exit 1")),
            _ => {}
        }
        Ok(ToolResult::ok("done", ()))
    }
}

fn runner(directory: &Path, id: Option<Uuid>) -> ToolRunner {
    let options = StoreOptions { durability: Durability::Process, ..StoreOptions::default() };
    let store = Store::open_with(directory.join("store"), options).unwrap();
    let session = match id {
        Some(id) => store.open_session(id, &types()).unwrap(),
        None => store.create(&types()).unwrap(),
    };
    let root = directory.join("workspace");
    let files =
        HostFilesystem::open(&root, directory.join("snapshots"), HostFilesystemOptions::default()).unwrap();
    let resources = ResourceRegistry::builder().filesystem(Arc::new(files)).build().unwrap();
    ToolRunner::new(ExecutionState::new(session, resources), ToolRegistry::new().with(Shell(root)))
}

fn call(runner: &ToolRunner, script: &str, then: Then) -> Result<ToolReport> {
    let arguments = serde_json::to_string(&Script { script: script.to_owned(), then }).unwrap();
    runner.execute(&ToolCall::new("shell", arguments), &ExecuteOptions::default())
}

#[test]
#[ignore = "a part of another test, which runs it in a process of its own"]
fn part_of_a_child_that_is_killed_within_git() {
    let Some(argument) = child::argument() else { return };
    let [id, directory, script] = argument.splitn(3, ' ').collect::<Vec<_>>()[..] else {
        panic!("{argument}")
    };
    let _ = call(&runner(Path::new(directory), Some(id.parse().unwrap())), script, Then::Die);
}

/// Each of these scripts ended a run: the branch had moved, or a repository stayed, and a person
/// had to repair it.
#[test]
fn a_call_that_used_git_and_failed_or_was_killed_leaves_the_repository_as_it_was() {
    // The script, and whether its commit is kept.
    let scripts = [
        ("git commit -qam two", true),
        ("git stash -q", true),
        ("git checkout -q -b side && touch .git/index.lock", false),
        ("git clone -q . clone", false),
        ("mkdir crate && cd crate && git init -q && echo '[package]' >Cargo.toml && mkdir src", false),
        ("cargo new -q --vcs git made", false),
        (
            "mkdir -p app/node_modules/.bin app/node_modules/tool && cd app && echo {} >package.json && \
             echo '#!/bin/sh' >node_modules/tool/cli.js && chmod 755 node_modules/tool/cli.js && \
             ln -s ../tool/cli.js node_modules/.bin/tool && echo node_modules >.gitignore && git init -q && git add . && \
             git commit -qm app",
            false,
        ),
    ];
    for (script, keeps) in scripts {
        for then in [Then::Fail, Then::Die] {
            let place = tempfile::tempdir().unwrap();
            let root = place.path().join("workspace");
            fs::create_dir(&root).unwrap();
            shell(
                &root,
                "git init -q -b main && echo 1 >file && git add . && git commit -qm one && echo 2 >file",
            );
            let runner = runner(place.path(), None);
            assert!(call(&runner, "git tag made && echo made >made-before", Then::Succeed).unwrap().success);
            let state = |root: &Path| (digest::of(root), files_of(&root.join(".git")), stands(root));
            let before = state(&root);
            let id = runner.state().session().id();
            let (operation, not_undone) = match then {
                Then::Die => {
                    drop(runner);
                    let part = "tools::git::part_of_a_child_that_is_killed_within_git";
                    child::start(part, &format!("{id} {} {script}", place.path().display())).ended();
                    let runner = self::runner(place.path(), Some(id));
                    let recovered = runner.recover(&ExecuteOptions::default()).unwrap();
                    let [recovered] = &recovered[..] else { panic!("{recovered:?}") };
                    (recovered.operation, recovered.not_undone.clone())
                }
                then => {
                    let report = call(&runner, script, then).unwrap();
                    assert!(!report.success);
                    (report.operation, report.not_undone)
                }
            };
            let aside = root.join(format!(".foldlog-aside/{operation}"));
            // A repository created by the call is in no capture.
            let is_aside = ["git clone", "git init", "--vcs git"].iter().any(|made| script.contains(made));
            assert_eq!(aside.exists(), is_aside, "{script}");
            if is_aside {
                fs::remove_dir_all(root.join(".foldlog-aside")).unwrap();
            }
            assert_eq!(state(&root), before, "{script}");
            assert_eq!(shell(&root, "find . -name '*.lock' -o -name .git"), "./.git\n");
            is_sound(&root);
            let path = format!(".git/refs/foldlog/lost/{operation}");
            match &not_undone[..] {
                [] => assert!(!keeps && !is_aside, "{script}"),
                [NotUndone { path, .. }] if is_aside => {
                    assert_eq!(*path, format!(".foldlog-aside/{operation}"), "{script}");
                }
                [NotUndone { path: told, reason, .. }] => {
                    let lost = fs::read_to_string(root.join(&path)).unwrap();
                    assert!(
                        keeps && *told == path && reason.contains(lost.trim()),
                        "{script}: {not_undone:?}"
                    );
                }
                _ => panic!("{script}: {not_undone:?}"),
            }
        }
    }
}
