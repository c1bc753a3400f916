//! Commits, working trees and repositories of git, in calls of agents.

use std::fs;
use std::path::{Path, PathBuf};

use foldlog_test_support::skipped;
use serde_json::{Value as Json, json};

use crate::project::{Project, read, text};

/// Runs git in a directory, and returns what it prints.
fn git(directory: &Path, words: &[&str]) -> String {
    let mut git = std::process::Command::new("git");
    git.args(["-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main"]);
    git.args(words)
        .current_dir(directory)
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_CONFIG_NOSYSTEM", "1");
    let ran = git.output().unwrap();
    assert!(ran.status.success(), "git {words:?}: {}", text(&ran));
    String::from_utf8(ran.stdout).unwrap()
}

fn has_git() -> bool {
    let has_git = std::process::Command::new("git").arg("--version").output().is_ok();
    if !has_git {
        skipped("there is no git");
    }
    has_git
}

/// Makes a repository with one commit of all files.
fn init(directory: &Path) {
    git(directory, &["init", "-q"]);
    git(directory, &["add", "."]);
    git(directory, &["commit", "-qm", "first", "--allow-empty"]);
}

/// Returns the input of a hook of a shell with another command, and in another directory.
fn shell(project: &Project, event: &str, id: &str, command: &str, directory: &Path) -> Json {
    let mut input = project.shell(event, id);
    input["tool_input"] = json!({"command": command});
    input["cwd"] = json!(directory);
    input
}

/// Runs a hook of the agent in the project's directory, wherever the agent is now.
fn hook(project: &Project, input: &Json) -> Json {
    let mut command = project.command(&["hook", "event", "claude"]);
    command.env("CLAUDE_PROJECT_DIR", &project.root).stdin(std::process::Stdio::piped());
    let mut child = command.stdout(std::process::Stdio::piped()).spawn().unwrap();
    use std::io::Write as _;
    writeln!(child.stdin.take().unwrap(), "{input}").unwrap();
    let ran = child.wait_with_output().unwrap();
    assert!(ran.status.success(), "{}", text(&ran));
    serde_json::from_slice(&ran.stdout).unwrap_or(Json::Null)
}

/// Runs a call with a command, in a directory.
fn call(project: &Project, id: &str, command: &str, directory: &Path, change: impl FnOnce()) {
    assert_eq!(hook(project, &shell(project, "PreToolUse", id, command, directory)), Json::Null);
    change();
    assert_eq!(hook(project, &shell(project, "PostToolUse", id, command, directory)), Json::Null);
}

/// Runs a command of the binary, and returns all that it prints.
fn printed(project: &Project, words: &[&str]) -> String {
    text(&project.command(words).output().unwrap())
}

/// Makes a repository next to the project, with a file `lib`.
fn neighbour(project: &Project) -> PathBuf {
    let other = project.root.parent().unwrap().join("other");
    fs::create_dir_all(other.join("src")).unwrap();
    fs::write(other.join("lib"), "one\n").unwrap();
    init(&other);
    other
}

#[test]
fn a_commit_in_a_call_stays_and_is_named() {
    if !has_git() {
        return;
    }
    let project = Project::new();
    init(&project.root);
    call(&project, "commit", "git commit", &project.root, || {
        project.write("notes", "changed\n");
        git(&project.root, &["commit", "-qam", "Change the notes"]);
    });
    let id = git(&project.root, &["rev-parse", "HEAD"]);
    let id = id.trim();
    assert!(project.foldlog(&["log"]).contains(&format!("1 changed, commit {}", &id[..7])));
    let preview = project.foldlog(&["undo", "--preview"]);
    let named = format!("  stays    commit {}: Change the notes\n", &id[..7]);
    assert!(preview.contains(&named), "{preview}");
    let prompt = project.hook(&project.input("UserPromptSubmit", &json!({"prompt": "/undo"})));
    assert!(prompt["reason"].as_str().unwrap().contains(named.trim_end()), "{prompt}");
    let undone = project.foldlog(&["undo", "--yes"]);
    assert!(undone.contains(&named), "{undone}");
    assert_eq!(read(&project.root.join("notes")), "keep\n");
    assert_eq!(git(&project.root, &["rev-parse", "HEAD"]).trim(), id);
    assert_eq!(git(&project.root, &["status", "--porcelain"]), " M notes\n");
}

#[test]
fn a_preview_names_each_repository_that_a_call_has_changed_and_those_that_are_lost() {
    if !has_git() {
        return;
    }
    let project = Project::new();
    init(&project.root);
    let (root, nested) = (&project.root, project.root.join("nested"));
    let preview = |number: &str| printed(&project, &["undo", number, "--preview"]);
    let stays = |path: &str, number: u64| {
        format!("  stays    {path}: commits, branches, the index or configuration, changed by {number}\n")
    };
    call(&project, "branch", "git branch", root, || drop(git(root, &["branch", "other"])));
    assert!(preview("1").contains(&stays(".git", 1)), "{}", preview("1"));
    call(&project, "init", "git init", root, || {
        fs::create_dir(&nested).unwrap();
        git(&nested, &["init", "-q"]);
    });
    assert!(preview("2").contains(&stays("nested/.git", 2)), "{}", preview("2"));
    assert!(!preview("2").contains("  .git"), "{}", preview("2"));
    // What the call has created is not lost.
    fs::remove_dir_all(&nested).unwrap();
    assert!(!preview("2").contains(".git"), "{}", preview("2"));
    call(&project, "status", "git status", root, || {
        project.write("notes", "keep\n");
        git(root, &["status"]);
    });
    assert!(!preview("3").contains(".git"), "{}", preview("3"));
    call(&project, "remove", "rm -r .git", root, || fs::remove_dir_all(root.join(".git")).unwrap());
    let lost = "  lost     .git: it was removed and is not recorded, so its commits are not restored\n";
    assert!(preview("4").contains(lost), "{}", preview("4"));
}

#[test]
fn a_checkout_and_a_commit_in_a_submodule_are_named_and_leave_git_as_it_is() {
    if !has_git() {
        return;
    }
    let project = Project::new();
    let library = neighbour(&project);
    init(&project.root);
    let from = library.to_str().unwrap();
    git(&project.root, &["-c", "protocol.file.allow=always", "submodule", "add", "-q", from, "module"]);
    fs::create_dir(project.root.join("nested")).unwrap();
    fs::write(project.root.join("nested/file"), "nested\n").unwrap();
    init(&project.root.join("nested"));
    call(&project, "call", "make", &project.root, || {
        git(&project.root, &["checkout", "-qb", "topic"]);
        project.write("module/lib", "two\n");
        git(&project.root.join("module"), &["commit", "-qam", "In the module"]);
        fs::remove_file(project.root.join("nested/file")).unwrap();
        git(&project.root.join("nested"), &["commit", "-qam", "In the nested one"]);
    });
    let undone = project.foldlog(&["undo", "--yes"]);
    for named in [
        " in module: In the module\n",
        " in nested: In the nested one\n",
        ": checkout: moving from main to topic\n",
    ] {
        assert!(undone.contains(named), "{undone}");
    }
    assert_eq!(read(&project.root.join("module/lib")), "one\n");
    assert_eq!(read(&project.root.join("nested/file")), "nested\n");
    assert_eq!(git(&project.root, &["branch", "--show-current"]), "topic\n");
    for (directory, subject) in [("module", "In the module\n"), ("nested", "In the nested one\n")] {
        assert_eq!(git(&project.root.join(directory), &["log", "-1", "--format=%s"]), subject);
    }
}

#[test]
fn a_cd_into_another_repository_makes_it_a_root_of_the_session() {
    if !has_git() {
        return;
    }
    let project = Project::new();
    let other = neighbour(&project);
    let other_text = other.to_str().unwrap();
    call(&project, "here", "true", &project.root, || project.write("here", "x"));
    call(&project, "both", "cd ../other/src && make", &project.root, || {
        project.write("new", "x");
        fs::write(other.join("lib"), "two\n").unwrap();
    });
    // The root remains one of the session, although this command does not name it.
    call(&project, "there", "./run", &project.root, || fs::write(other.join("src/new"), "x").unwrap());
    call(&project, "neither", "true", &project.root, || {});

    let steps = project.steps();
    assert_eq!(steps[0]["call"]["roots"], Json::Null);
    assert_eq!(steps[1]["call"]["roots"], json!([project.root, other]));
    let listed = project.foldlog(&["log", "--root", other_text]);
    assert!(listed.contains("cd ../other/src && make  1 changed") && listed.contains("./run"), "{listed}");
    assert!(!listed.contains("true"), "calls without changes there are not listed: {listed}");

    // An undo here does not pass over a later call that only changed the other root.
    let refused = project.command(&["undo", "--yes"]).output().unwrap();
    let command = format!("foldlog undo 2 --root {other_text}");
    assert_eq!(refused.status.code(), Some(2));
    assert!(
        text(&refused).contains(&format!("call 3 (Bash: ./run) changed 1 file in {other_text}; `{command}`")),
        "{}",
        text(&refused)
    );
    let undone = printed(&project, &["undo", "2", "--yes"]);
    assert!(
        undone.contains(&format!("note: call 2 changed 1 file in {other_text}; `foldlog undo 1 --root")),
        "{undone}"
    );
    assert!(!project.root.join("new").exists());
    assert_eq!(read(&other.join("lib")), "two\n");
    project.foldlog(&["undo", "2", "--root", other_text, "--yes"]);
    project.foldlog(&["undo", "1", "--root", "../other", "--yes"]);
    assert!(!other.join("src/new").exists());
    assert_eq!(read(&other.join("lib")), "one\n");
    project.foldlog(&["redo", "--root", other_text, "--yes"]);
    assert_eq!(read(&other.join("lib")), "two\n");

    // The model learns of it in its own session.
    let told = hook(&project, &project.input("UserPromptSubmit", &json!({"prompt": "go on"})));
    let context = told["hookSpecificOutput"]["additionalContext"].as_str().unwrap();
    assert!(
        context.contains(&format!("{other_text}/src/new")) && context.contains("Removed files: new."),
        "{context}"
    );
}

#[test]
fn directories_that_the_user_adds_and_a_cd_that_only_the_program_knows_are_roots_from_then_on() {
    if !has_git() {
        return;
    }
    let project = Project::new();
    let (other, added) = (neighbour(&project), project.root.parent().unwrap().join("added"));
    fs::create_dir(&added).unwrap();
    hook(&project, &project.input("DirectoryAdded", &json!({"directory": added, "source": "slash_command"})));
    call(&project, "first", "cd $TARGET && touch x", &project.root, || {
        fs::write(other.join("x"), "").unwrap();
    });
    // The program reports the `cd` after the call, and has reset it.
    let changed = json!({"old_cwd": project.root, "new_cwd": other.join("src")});
    assert_eq!(hook(&project, &project.input("CwdChanged", &changed)), Json::Null);
    call(&project, "second", "./run", &project.root, || {
        fs::write(other.join("y"), "").unwrap();
        fs::write(added.join("z"), "").unwrap();
    });
    let steps = project.steps();
    let roots = |step: &Json| step["call"]["roots"].clone();
    assert_eq!(roots(&steps[0]), json!([project.root, added]), "{}", printed(&project, &["log"]));
    assert_eq!(steps[0]["call"]["outside"], json!([other.join("src")]));
    assert_eq!(roots(&steps[1]), json!([project.root, added, other]));
    let printed = printed(&project, &["log"]);
    assert!(printed.contains(&format!("outside: {}", other.join("src").display())), "{printed}");
    project.foldlog(&["undo", "--root", added.to_str().unwrap(), "--yes"]);
    project.foldlog(&["undo", "--root", other.to_str().unwrap(), "--yes"]);
    assert!(!added.join("z").exists() && !other.join("y").exists() && other.join("x").exists());
}

#[test]
fn calls_that_name_a_path_outside_of_all_roots_are_marked() {
    if !has_git() {
        return;
    }
    let project = Project::new();
    let other = neighbour(&project);
    // The home directory is a repository, which needs consent.
    init(&project.home());
    let write = |event: &str, id: &str, path: &Path| {
        let fields = json!({"tool_name": "Write", "tool_input": {"file_path": path, "content": "x"}, "tool_use_id": id});
        hook(&project, &project.input(event, &fields));
    };
    let tool = |id: &str, path: &Path| {
        write("PreToolUse", id, path);
        fs::write(path, "x").unwrap();
        write("PostToolUse", id, path);
    };
    let loose = project.root.parent().unwrap().join("loose");
    let home = project.home().canonicalize().unwrap();
    tool("home", &home.join(".profile"));
    tool("loose", &loose);
    tool("own", &project.root.join("own"));
    tool("other", &other.join("new"));
    call(&project, "cd", "cd / && ls; cd /no/such/directory", &project.root, || {});
    let odd = project.root.parent().unwrap().canonicalize().unwrap().join("a;b *");
    fs::create_dir(&odd).unwrap();
    call(&project, "odd", "cd '../a;b *' && ls", &project.root, || {});
    let outside: Vec<Json> = project.steps().iter().map(|step| step["call"]["outside"].clone()).collect();
    let expected =
        [json!([home.join(".profile")]), json!([loose]), Json::Null, Json::Null, json!(["/"]), json!([odd])];
    assert_eq!(outside, expected);
    let listed = project.foldlog(&["log"]);
    assert!(
        listed.contains(&format!("-, outside: {}", loose.display())) || listed.contains("outside: "),
        "{listed}"
    );
    // A file tool is recorded in the repository that contains its file.
    project.foldlog(&["undo", "--root", other.to_str().unwrap(), "--yes"]);
    assert!(!other.join("new").exists());
}

#[test]
fn sub_agents_in_working_trees_of_their_own_do_not_share_changes() {
    if !has_git() {
        return;
    }
    let project = Project::new();
    init(&project.root);
    let trees = [("one", "a1"), ("two", "a2")].map(|(name, agent)| {
        let tree = project.root.join(".claude/worktrees").join(name);
        git(&project.root, &["worktree", "add", "-q", tree.to_str().unwrap()]);
        (tree, agent)
    });
    let of_agent = |event: &str, (tree, agent): &(PathBuf, &str)| {
        let mut input = shell(&project, event, agent, "make", tree);
        input["agent_id"] = json!(agent);
        hook(&project, &input);
    };
    // All three calls overlap.
    trees.iter().for_each(|tree| of_agent("PreToolUse", tree));
    hook(&project, &shell(&project, "PreToolUse", "main", "make", &project.root));
    for (tree, _) in &trees {
        fs::create_dir(tree.join("made")).unwrap();
        fs::write(tree.join("made/new"), "x").unwrap();
        fs::write(tree.join("notes"), "changed\n").unwrap();
        git(tree, &["commit", "-qam", "In a working tree"]);
    }
    project.write("main", "x");
    trees.iter().for_each(|tree| of_agent("PostToolUse", tree));
    hook(&project, &shell(&project, "PostToolUse", "main", "make", &project.root));
    let shared: Vec<Json> = project.steps().iter().map(|step| step["shared"].clone()).collect();
    assert_eq!(shared, [json!([]), json!([]), json!([])]);

    let undone = project.foldlog(&["undo", "1", "--yes"]);
    assert!(undone.contains(" in .claude/worktrees/one: In a working tree"), "{undone}");
    let (one, two) = (&trees[0].0, &trees[1].0);
    assert!(
        !one.join("made").exists() && two.join("made/new").exists() && project.root.join("main").exists()
    );
    assert_eq!(
        (read(&one.join("notes")), read(&two.join("notes"))),
        ("keep\n".to_owned(), "changed\n".to_owned())
    );
    project.foldlog(&["undo", "3", "--yes"]);
    assert!(!project.root.join("main").exists() && two.join("made/new").exists());

    // The program makes another one while the call of a sub-agent runs, without a call of its own.
    of_agent("PreToolUse", &trees[1]);
    let third = project.root.join(".claude/worktrees/three");
    git(&project.root, &["worktree", "add", "-q", third.to_str().unwrap()]);
    fs::write(two.join("late"), "x").unwrap();
    of_agent("PostToolUse", &trees[1]);
    let undone = project.foldlog(&["undo", "--yes"]);
    assert!(undone.contains("1 file changed") && third.join("notes").exists(), "{undone}");

    // The removal of a working tree by a call brings its files back, without git.
    hook(&project, &shell(&project, "PreToolUse", "remove", "make", &project.root));
    git(&project.root, &["worktree", "remove", "--force", two.to_str().unwrap()]);
    hook(&project, &shell(&project, "PostToolUse", "remove", "make", &project.root));
    assert!(!two.exists());
    project.foldlog(&["undo", "--yes"]);
    assert_eq!(read(&two.join("made/new")), "x");
    assert!(!two.join(".git").exists());
}

#[test]
fn a_working_tree_that_was_removed_is_found_from_its_repository_and_restored() {
    if !has_git() {
        return;
    }
    let project = Project::new();
    init(&project.root);
    let tree = project.root.parent().unwrap().join("tree");
    let tree_text = tree.to_str().unwrap();
    git(&project.root, &["worktree", "add", "-q", tree_text]);
    call(&project, "here", "true", &project.root, || project.write("here", "x"));
    call(&project, "there", "cd ../tree && make", &project.root, || {
        fs::write(tree.join("work"), "not committed").unwrap();
    });
    git(&project.root, &["worktree", "remove", "--force", tree_text]);

    let listed = printed(&project, &["log"]);
    assert!(
        listed.contains(&format!(
            "note: {tree_text} was removed; `foldlog undo --root {tree_text}` restores it"
        )),
        "{listed}"
    );
    assert!(project.foldlog(&["log", "--root", tree_text]).contains("cd ../tree && make  1 created"));
    assert!(project.foldlog(&["diff", "1", "--root", tree_text]).contains("+not committed"));
    let preview = project.foldlog(&["undo", "--root", tree_text, "--preview"]);
    assert!(preview.contains("restore  work") && !tree.exists(), "{preview}");
    project.foldlog(&["undo", "--root", tree_text, "--yes"]);
    assert_eq!(
        (read(&tree.join("work")), read(&tree.join("notes"))),
        ("not committed".to_owned(), "keep\n".to_owned())
    );
    // The removal is a step like others.
    project.foldlog(&["redo", "--root", tree_text, "--yes"]);
    assert!(!tree.join("work").exists());
}

#[test]
fn the_main_working_tree_lists_the_calls_of_a_session_in_one_within_it() {
    if !has_git() {
        return;
    }
    let project = Project::new();
    init(&project.root);
    call(&project, "main", "make", &project.root, || project.write("main", "x"));
    let tree = project.root.join(".claude/worktrees/zed");
    git(&project.root, &["worktree", "add", "-q", tree.to_str().unwrap()]);
    // Its session has the working tree as its project directory. A call of the main one overlaps.
    hook(&project, &shell(&project, "PreToolUse", "overlapping", "make", &project.root));
    let of_tree = |event: &str| {
        let mut input = shell(&project, event, "zed", "make", &tree);
        input["session_id"] = json!("zed");
        assert_eq!(project.hook(&input), Json::Null);
    };
    of_tree("PreToolUse");
    fs::write(tree.join("work"), "x").unwrap();
    of_tree("PostToolUse");
    project.write("here", "x");
    hook(&project, &shell(&project, "PostToolUse", "overlapping", "make", &project.root));

    let steps = project.steps();
    let paths = |step: &Json| -> Vec<String> {
        step["files"]
            .as_array()
            .unwrap()
            .iter()
            .map(|file| file["path"].as_str().unwrap().to_owned())
            .collect()
    };
    assert_eq!(paths(&steps[1]), ["here"]);
    assert_eq!(paths(&steps[2]), [".claude/worktrees/zed/work"]);
    project.foldlog(&["undo", "1", "--root", tree.to_str().unwrap(), "--yes"]);
    assert!(!tree.join("work").exists() && project.root.join("here").exists());
}

#[test]
fn the_timeline_of_a_removed_working_tree_is_kept_for_seven_days() {
    if !has_git() {
        return;
    }
    let project = Project::new();
    init(&project.root);
    let (tree, project_text) = (project.root.parent().unwrap().join("tree"), project.root.to_str().unwrap());
    git(&project.root, &["worktree", "add", "-q", tree.to_str().unwrap()]);
    call(&project, "there", "cd ../tree && make", &project.root, || {
        fs::write(tree.join("work"), "x").unwrap();
    });
    let timelines = project.root.parent().unwrap().join("state/foldlog/timelines");
    let timeline = || {
        let dirs = fs::read_dir(&timelines).unwrap().map(|dir| dir.unwrap().path());
        dirs.into_iter().find(|dir| dir.file_name().unwrap().to_str().unwrap().starts_with("tree-"))
    };
    project.foldlog(&["hook", "prepare", project_text]);
    let noticed = timeline().unwrap().join("removed");
    assert!(!noticed.exists());
    git(&project.root, &["worktree", "remove", "--force", tree.to_str().unwrap()]);
    project.foldlog(&["hook", "prepare", project_text]);
    let age = |days: u64| {
        let past = std::time::SystemTime::now() - std::time::Duration::from_secs(days * 86400 + 60);
        fs::File::options().write(true).open(&noticed).unwrap().set_modified(past).unwrap();
        project.foldlog(&["hook", "prepare", project_text]);
    };
    age(6);
    assert!(timeline().is_some());
    age(7);
    assert_eq!(timeline(), None);
    assert!(project.foldlog(&["log"]).contains("make"));
}

#[test]
fn working_trees_of_a_repository_share_the_objects_of_their_captures() {
    if !has_git() {
        return;
    }
    use std::os::unix::fs::MetadataExt as _;
    let project = Project::new();
    for file in 0..20 {
        project.write(&format!("data/{file}"), &format!("content {file}\n"));
    }
    init(&project.root);
    let trees = ["one", "two"].map(|name| project.root.parent().unwrap().join(name));
    for tree in &trees {
        git(&project.root, &["worktree", "add", "-q", tree.to_str().unwrap()]);
        project.foldlog(&["hook", "prepare", tree.to_str().unwrap()]);
    }
    let state = project.root.parent().unwrap().join("state/foldlog/timelines");
    let objects = |name: &str| -> Vec<u64> {
        let dirs = fs::read_dir(&state).unwrap().map(|dir| dir.unwrap().path());
        let dir = dirs
            .into_iter()
            .find(|dir| dir.file_name().unwrap().to_str().unwrap().starts_with(name))
            .unwrap();
        let prefixes = fs::read_dir(dir.join("captures/objects")).unwrap().map(|dir| dir.unwrap().path());
        let files = prefixes.flat_map(|prefix| fs::read_dir(prefix).into_iter().flatten());
        files.map(|file| file.unwrap().metadata().unwrap().ino()).collect()
    };
    let (one, two) = (objects("one-"), objects("two-"));
    let shared = two.iter().filter(|inode| one.contains(inode)).count();
    // Lists of times differ, and so does what names them.
    assert!(two.len() > 20 && shared > 20, "{shared} of {} objects are shared", two.len());
}

/// Its list showed the call as running, and an entry in its place made all commands fail.
#[test]
fn a_call_that_removes_a_root_ends_there_and_an_entry_in_its_place_is_named() {
    if !has_git() {
        return;
    }
    for entry in ["nothing", "file", "link"] {
        let project = Project::new();
        let other = neighbour(&project);
        let other_text = other.to_str().unwrap();
        call(&project, "change", "cd ../other && make", &project.root, || {
            fs::write(other.join("made"), "x").unwrap();
        });
        call(&project, "remove", "rm -r ../other", &project.root, || {
            fs::remove_dir_all(&other).unwrap();
            match entry {
                "file" => fs::write(&other, "x").unwrap(),
                "link" => std::os::unix::fs::symlink("/no/such/directory", &other).unwrap(),
                _ => {}
            }
        });
        let listed = project.foldlog(&["--json", "log", "--root", other_text]);
        let last: Json = serde_json::from_str(listed.lines().next().unwrap()).unwrap();
        assert_eq!(
            (&last["call"]["title"], &last["outcome"]),
            (&json!("rm -r ../other"), &json!("succeeded"))
        );
        if entry != "nothing" {
            let ran = project.command(&["undo", "--root", other_text, "--yes"]).output().unwrap();
            assert_eq!(ran.status.code(), Some(2));
            let printed = text(&ran);
            let named = format!("{other_text} is not a directory any more; first move it to another place");
            assert!(printed.contains(&named) && !printed.contains("--force"), "{printed}");
            fs::remove_file(&other).unwrap();
        }
        project.foldlog(&["undo", "--root", other_text, "--yes"]);
        assert_eq!(
            (read(&other.join("made")), read(&other.join("lib"))),
            ("x".to_owned(), "one\n".to_owned())
        );
        // The next call is recorded there again.
        call(&project, "later", "cd ../other && make", &project.root, || {
            fs::write(other.join("later"), "x").unwrap();
        });
        project.foldlog(&["undo", "--root", other_text, "--yes"]);
        assert!(!other.join("later").exists() && other.join("made").exists());
    }
}
