//! Adding and removing hooks.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Command, Stdio};

use foldlog_test_support::skipped;
use serde_json::json;

use super::place::{Place, commands, ran};

const NEW: [&str; 4] = ["PermissionRequest", "PostToolUseFailure", "CwdChanged", "DirectoryAdded"];

#[test]
fn hooks_are_installed_once_and_uninstalled_without_a_trace() {
    let place = Place::with_claude("2.1.332");
    let ran = place.succeeds("hook install claude --yes");
    let (file, own) = (place.settings(), env!("CARGO_BIN_EXE_foldlog"));
    let expected = format!("{} (new file)\n  adds hooks of SessionStart, ", file.display());
    assert!(ran.stdout.starts_with(&expected), "{}", ran.stdout);
    assert!(ran.stdout.contains(&format!("\n  command: {own} hook event claude\n")), "{}", ran.stdout);
    assert!(ran.stdout.contains("undo.md (new file)\n  adds the command `/undo`\n"), "{}", ran.stdout);
    assert_eq!(ran.stdout.lines().count(), 8, "{}", ran.stdout);
    assert!(ran.stdout.contains("\ninstalled 11 hooks in "), "{}", ran.stdout);

    let text = place.read_settings();
    let settings: serde_json::Value = serde_json::from_str(&text).unwrap();
    let command = format!("{} hook event claude", env!("CARGO_BIN_EXE_foldlog"));
    assert_eq!(commands(&text).len(), 11);
    assert!(commands(&text).iter().all(|(_, other)| *other == command), "{text}");
    let handler = json!({ "type": "command", "command": command, "timeout": 30 });
    assert_eq!(settings["hooks"]["PreToolUse"], json!([{ "matcher": "*", "hooks": [handler] }]));
    assert_eq!(settings["hooks"]["Stop"], json!([{ "hooks": [handler] }]));

    let again = place.succeeds("hook install claude");
    assert!(again.stdout.starts_with("already installed: 11 hooks in "), "{}", again.stdout);
    assert_eq!(place.read_settings(), text);

    let removed = place.succeeds("hook uninstall claude --yes");
    let expected = format!("{} (is removed)\n  removes the hooks of SessionStart, ", file.display());
    assert!(removed.stdout.starts_with(&expected), "{}", removed.stdout);
    assert!(!place.path("home/.claude").exists(), "a directory remains");
    let again = place.succeeds("hook uninstall claude");
    assert!(again.stdout.starts_with("not installed: "), "{}", again.stdout);
}

#[test]
fn directories_with_other_files_remain_and_the_records_are_named() {
    let place = Place::with_claude("2.1.332");
    place.succeeds("hook install claude --yes");
    fs::write(place.path("home/.claude/commands/own.md"), "mine").unwrap();
    let records = place.path("home/.local/state/foldlog/timelines");
    fs::create_dir_all(records.join("project-1")).unwrap();
    fs::write(records.join("project-1/records"), vec![7; 2_000_000]).unwrap();
    let shown = place.foldlog("hook status claude").stdout;
    let line = format!("\nrecords: {} (2.0 MB)\n", records.display());
    assert!(shown.contains(&line), "{shown}");
    let removed = place.succeeds("hook uninstall claude --yes").stdout;
    let line = format!("\nthe records stay in {} (2.0 MB); remove that directory", records.display());
    assert!(removed.contains(&line), "{removed}");
    assert!(place.path("home/.claude/commands/own.md").exists() && records.exists());
}

#[test]
fn notes_follow_the_results_before_them_in_a_common_pipe() {
    let place = Place::with_claude("2.1.332");
    let line = format!("{} hook install claude --yes 2>&1", env!("CARGO_BIN_EXE_foldlog"));
    let shown = ran(place.command("sh", "").args(["-c", &line])).stdout;
    let at = |text: &str| shown.find(text).unwrap_or_else(|| panic!("{text}: {shown}"));
    assert!(at("\ninstalled 11 hooks in ") < at("\n  next: "), "{shown}");
}

#[test]
fn only_events_that_the_installed_version_knows_are_written() {
    let place = Place::with_claude("2.0.44");
    let old = place.succeeds("hook install claude --yes");
    assert!(old.stderr.contains("2.0.44 does not know these events: "), "{}", old.stderr);
    assert!(commands(&place.read_settings()).iter().all(|(event, _)| !NEW.contains(&event.as_str())));
    assert_eq!(commands(&place.read_settings()).len(), 7);

    place.set_claude("2.1.332");
    place.succeeds("hook install claude --yes");
    assert_eq!(commands(&place.read_settings()).len(), 11);

    place.set_claude("2.0.55");
    let ran = place.succeeds("hook install claude --yes");
    assert_eq!(commands(&place.read_settings()).len(), 8);
    assert!(ran.stdout.contains("\n  removes the hooks of "), "{}", ran.stdout);
    place.succeeds("hook uninstall claude --yes");
    assert!(!place.settings().exists());

    place.set_claude("1.0.58");
    let older = place.foldlog("hook install claude --yes");
    assert_eq!((older.code, place.settings().exists()), (2, false), "{older:?}");
}

#[test]
fn without_a_version_only_events_of_all_versions_are_written() {
    let place = Place::new();
    for (script, reason) in [
        (None, "there is no program `claude` on the search path"),
        (Some("exit 3"), "`claude --version` failed: exit status: 3"),
        (Some("echo nothing"), "`claude --version` printed \"nothing\""),
    ] {
        script.map(|script| place.program("bin/claude", script));
        let ran = place.succeeds("hook install claude --yes --json");
        assert!(ran.stderr.contains(reason), "{}", ran.stderr);
        let document = ran.json();
        assert_eq!(document["agent_version"], json!(null));
        assert_eq!(
            document["left_out"],
            json!(["PostToolUseFailure", "PermissionRequest", "CwdChanged", "DirectoryAdded"])
        );
        assert_eq!(commands(&place.read_settings()).len(), 7);
    }
}

#[test]
fn nothing_is_written_without_consent() {
    let place = Place::with_claude("2.1.332");
    let shown = place.succeeds("hook install claude --dry-run");
    assert!(shown.stdout.contains("\n+  \"hooks\": {\n"), "{}", shown.stdout);
    assert!(shown.stdout.contains("\nwould install 11 hooks in "), "{}", shown.stdout);
    let asked = place.foldlog("hook install claude");
    assert_eq!((asked.code, place.path("home/.claude").exists()), (2, false), "{asked:?}");
    assert!(asked.stderr.contains("`--yes`"), "{}", asked.stderr);

    place.succeeds("hook install claude --yes");
    let text = place.read_settings();
    assert_eq!(place.foldlog("hook uninstall claude").code, 2);
    let shown = place.succeeds("hook uninstall claude --dry-run --json").json();
    assert_eq!((&shown["removes_file"], &shown["written"]), (&json!(true), &json!(false)));
    assert_eq!(shown["events"].as_array().unwrap().len(), 11);
    assert_eq!(place.read_settings(), text);
}

#[test]
fn a_person_on_a_terminal_is_asked() {
    if !Command::new("script").arg("--version").output().is_ok_and(|output| output.status.success()) {
        return skipped("no terminal can be made here by `script`");
    }
    let place = Place::with_claude("2.1.332");
    for (answer, is_written) in [("\n", false), ("n\n", false), ("y\n", true)] {
        let line = format!("{} hook install claude", env!("CARGO_BIN_EXE_foldlog"));
        let mut script = place.command("script", "");
        script.args(["-qec", &line, "/dev/null"]).env("SHELL", "/bin/sh").env("TERM", "dumb");
        let child = script.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        child.stdin.as_ref().unwrap().write_all(answer.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        let shown = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success() && shown.contains("Write this change? [y/N]"), "{shown}");
        assert_eq!(shown.contains("nothing was written"), !is_written, "{shown}");
        assert_eq!(place.settings().exists(), is_written, "{shown}");
        nothing_temporary_remains(&place);
    }
}

/// Checks that there are only the settings file and the command `/undo`.
fn nothing_temporary_remains(place: &Place) {
    for (directory, expected) in [
        ("home/.claude", &["settings.json", "commands"][..]),
        ("home/.claude/commands", &["undo.md", "redo.md"]),
    ] {
        let Ok(entries) = fs::read_dir(place.path(directory)) else { continue };
        let names: Vec<_> = entries.map(|entry| entry.unwrap().file_name()).collect();
        assert!(names.iter().all(|name| expected.iter().any(|expected| name == expected)), "{names:?}");
    }
}

#[test]
fn the_command_of_the_prompt_is_added_for_the_user_and_never_replaces_another() {
    let place = Place::with_claude("2.1.332");
    let command = place.path("home/.claude/commands/undo.md");
    let rewind = "note: `/undo` is foldlog's from now on; `/rewind` stays that of Claude Code\n";
    let noted = place.succeeds("hook install claude --project --yes").stderr;
    assert!(!command.exists(), "the commands of a project belong to all of its people");
    assert!(!noted.contains(rewind), "{noted}");
    let noted = place.succeeds("hook install claude --yes").stderr;
    assert!(noted.contains(rewind), "{noted}");
    assert!(fs::read_to_string(&command).unwrap().contains("disable-model-invocation: true"));
    place.succeeds("hook uninstall claude --yes");
    assert!(!command.exists());
    fs::create_dir_all(command.parent().unwrap()).unwrap();
    fs::write(&command, "mine").unwrap();
    let noted = place.succeeds("hook install claude --yes").stderr;
    let own = format!("note: foldlog answers `/undo` in place of your command {}", command.display());
    assert!(noted.contains(&own) && !noted.contains("answers `/redo`"), "{noted}");
    place.succeeds("hook uninstall claude --yes");
    assert_eq!(fs::read_to_string(&command).unwrap(), "mine");
}

#[test]
fn other_contents_of_a_file_remain_byte_for_byte() {
    let place = Place::with_claude("2.1.332");
    for text in [
        "{}",
        "{}\n",
        "{\n}\n",
        "{ \"hooks\": {} }",
        "{\"hooks\":{\"PreToolUse\":[],\"Stop\":[ ]}}",
        "{\r\n\t\"model\": \"opus\",\r\n\t\"hooks\": {\r\n\t}\r\n}\r\n",
        "// mine\n{\n  \"a\": 1, // one\n\n  /* two */\n}\n\n",
        "",
        " \n",
    ] {
        place.write_settings(text);
        fs::set_permissions(place.settings(), fs::Permissions::from_mode(0o640)).unwrap();
        place.succeeds("hook install claude --yes");
        assert_ne!(place.read_settings(), text);
        assert_eq!(place.settings().metadata().unwrap().permissions().mode() & 0o7777, 0o640);
        place.succeeds("hook uninstall claude --yes");
        assert_eq!(place.read_settings(), text);
        nothing_temporary_remains(&place);
    }
}

#[test]
fn an_unusable_file_is_reported_with_its_line_and_remains() {
    let place = Place::with_claude("2.1.332");
    for (text, line) in [("{\n  \"a\": 1,,\n}\n", 2), ("{\n\n  \"hooks\": []\n}\n", 3), ("//", 1)] {
        place.write_settings(text);
        for verb in ["install", "uninstall"] {
            let ran = place.foldlog(&format!("hook {verb} claude --yes"));
            let named = format!("error: {}, line {line}: ", place.settings().display());
            assert_eq!(ran.code, 2, "{ran:?}");
            assert!(ran.stderr.starts_with(&named), "{}", ran.stderr);
            assert_eq!(place.read_settings(), text);
        }
        let status = place.foldlog("hook status claude --json");
        assert_eq!((status.code, &status.json()["files"][0]["state"]), (1, &json!("unusable")));
    }
}

#[test]
fn a_linked_settings_file_is_written_through_its_link() {
    let place = Place::with_claude("2.1.332");
    fs::create_dir_all(place.path("dotfiles")).unwrap();
    fs::create_dir_all(place.path("home/.claude")).unwrap();
    std::os::unix::fs::symlink("../../dotfiles/claude.json", place.settings()).unwrap();
    let dangling = place.foldlog("hook install claude --yes");
    assert_eq!(dangling.code, 2, "{dangling:?}");

    fs::write(place.path("dotfiles/claude.json"), "{}").unwrap();
    place.succeeds("hook install claude --yes");
    assert!(place.settings().symlink_metadata().unwrap().is_symlink());
    assert_eq!(commands(&fs::read_to_string(place.path("dotfiles/claude.json")).unwrap()).len(), 11);
    assert!(!place.path("home/.claude/claude.json").exists());
}

#[test]
fn a_link_to_the_program_is_named_and_a_moved_one_replaced() {
    let place = Place::with_claude("2.1.332");
    let (first, second) = (place.link("a b/foldlog"), place.link("bin/foldlog"));
    ran(&mut place.command(&first, "hook install claude --yes"));
    let quoted = format!("'{}' hook event claude", first.display());
    assert!(commands(&place.read_settings()).iter().all(|(_, command)| *command == quoted));

    // By the search path, as people call it.
    let before = place.read_settings();
    let mut shell = place.command("sh", "");
    let moved = ran(shell.args(["-c", "foldlog hook install claude --yes"]));
    assert_eq!(moved.code, 0, "{moved:?}");
    assert!(moved.stdout.contains("\n  replaces the command of the hooks of SessionStart, "), "{moved:?}");
    assert_eq!(
        place.read_settings(),
        before.replace(&quoted, &format!("{} hook event claude", second.display()))
    );

    // A hook that cannot be recognised later is not written.
    let other = place.link("bin/recorder");
    assert_eq!(ran(&mut place.command(&other, "hook install claude --yes")).code, 2);
}

#[test]
fn each_scope_has_its_own_file() {
    let place = Place::with_claude("2.1.332");
    let shared = place.succeeds("hook install claude --shared --yes");
    assert!(shared.stderr.contains("people who share it need 2.0.56 or newer"), "{}", shared.stderr);
    let text = fs::read_to_string(place.path("project/.claude/settings.json")).unwrap();
    let command = "command -v foldlog >/dev/null || exit 0; foldlog hook event claude";
    assert!(commands(&text).iter().all(|(_, other)| other == command), "{text}");

    let project = place.succeeds("hook install claude --project --yes");
    assert!(
        project.stderr.contains("`foldlog hook uninstall claude --shared` removes them"),
        "{}",
        project.stderr
    );
    let local = place.path("project/.claude/settings.local.json");
    assert_eq!(commands(&fs::read_to_string(&local).unwrap()).len(), 11);
    assert!(!place.settings().exists());
    let user = place.succeeds("hook install claude --yes").stderr;
    for (file, scope) in [(&local, "project"), (&place.path("project/.claude/settings.json"), "shared")] {
        let (file, option) = (file.display(), format!("--{scope}` removes them"));
        let note = user.lines().find(|line| line.contains(&format!("note: {file} has hooks of foldlog too")));
        let is_whole = note.is_some_and(|note| note.contains("recorded once") && note.contains(&option));
        assert!(is_whole, "{user}");
    }
    place.succeeds("hook uninstall claude --yes");
    place.succeeds("hook uninstall claude --project --yes");
    assert!(!local.exists());

    let mut configured = place.command(env!("CARGO_BIN_EXE_foldlog"), "hook install claude --user --yes");
    assert_eq!(ran(configured.env("CLAUDE_CONFIG_DIR", place.path("config/claude"))).code, 0);
    assert!(place.path("config/claude/settings.json").exists() && !place.settings().exists());
    assert_eq!(place.foldlog("hook install claude --user --shared").code, 2);
}

#[test]
fn a_shared_hook_does_nothing_without_foldlog() {
    let place = Place::with_claude("2.1.332");
    place.succeeds("hook install claude --shared --yes");
    let text = fs::read_to_string(place.path("project/.claude/settings.json")).unwrap();
    let (_, command) = commands(&text).remove(0);
    let without = ran(place.command("sh", "").args(["-c", &command]));
    assert_eq!((without.code, without.stdout, without.stderr), (0, String::new(), String::new()));
    place.program("bin/foldlog", "echo \"$*\"");
    assert_eq!(ran(place.command("sh", "").args(["-c", &command])).stdout, "hook event claude\n");
}
