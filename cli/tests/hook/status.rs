//! The report of installed hooks.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use super::place::{Place, commands, ran};

/// Replaces the program of the user's hooks.
fn set_program(place: &Place, program: &Path) {
    let text = place.read_settings();
    place.write_settings(&text.replace(env!("CARGO_BIN_EXE_foldlog"), program.to_str().unwrap()));
}

fn problems(document: &Value) -> Vec<&str> {
    let files = document["files"].as_array().unwrap();
    let problems = files.iter().flat_map(|file| file["problems"].as_array().unwrap());
    problems.map(|problem| problem.as_str().unwrap()).collect()
}

#[test]
fn installed_hooks_run_and_are_well() {
    let place = Place::with_claude("2.1.332");
    let none = place.foldlog("hook status claude");
    assert_eq!(none.code, 1);
    assert!(none.stderr.contains("`foldlog hook install claude`"), "{none:?}");

    place.succeeds("hook install claude --yes");
    let shown = place.succeeds("hook status claude").stdout;
    assert!(shown.starts_with("Claude Code 2.1.332\nuser  "), "{shown}");
    assert!(shown.contains(&format!("  runs {}: this program\n", env!("CARGO_BIN_EXE_foldlog"))), "{shown}");
    assert_eq!(shown.matches(": not installed (no such file)\n").count(), 2, "{shown}");
    let document = place.succeeds("hook status claude --json").json();
    let user = &document["files"][0];
    assert_eq!((&document["is_well"], &user["state"]), (&json!(true), &json!("installed")));
    assert_eq!(user["programs"][0]["is_this"], json!(true));
    let hooks = user["hooks"].as_array().unwrap();
    assert_eq!(hooks.len(), 11);
    assert!(hooks.iter().all(|hook| hook["exit_code"] == 0 && hook["milliseconds"].is_u64()), "{hooks:?}");
}

#[test]
fn without_an_agent_all_are_reported() {
    let place = Place::with_claude("2.1.332");
    let none = place.foldlog("hook status");
    assert_eq!(none.code, 1);
    for expected in ["Claude Code 2.1.332\n", "Codex: the version is unknown", "Gemini CLI: the version is "]
    {
        assert!(none.stdout.contains(expected), "{none:?}");
    }
    assert_eq!(none.stderr, "  next: `foldlog hook install claude`, `codex` or `gemini`\n");
    place.succeeds("hook install claude --yes");
    let one = place.succeeds("hook status");
    assert_eq!(one.stderr, "", "{one:?}");
    assert_eq!(place.succeeds("hook status --json").stdout.lines().count(), 3);
    for verb in ["install", "uninstall"] {
        let unnamed = place.foldlog(&format!("hook {verb}"));
        assert_eq!(unnamed.code, 2);
        assert!(unnamed.stderr.contains("<claude|codex|gemini>"), "{unnamed:?}");
    }
}

#[test]
fn each_hook_runs_once_in_temporary_directories() {
    let place = Place::with_claude("2.1.332");
    place.succeeds("hook install claude --yes");
    let script = r#"{ cat; echo; pwd; ls -A; echo "$XDG_STATE_HOME"; echo "$*"; } >"$HOME/ran.$$""#;
    let program = place.program("other/foldlog", script);
    set_program(&place, &program);
    let document = place.succeeds("hook status claude --json").json();
    assert_eq!(document["files"][0]["programs"][0]["is_this"], json!(false));

    let mut events = Vec::new();
    for entry in fs::read_dir(place.path("home")).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            continue;
        }
        let text = fs::read_to_string(path).unwrap();
        let [input, directory, state, words] = text.lines().collect::<Vec<_>>()[..] else { panic!("{text}") };
        let input: Value = serde_json::from_str(input).unwrap();
        assert_eq!((&input["cwd"], words), (&json!(directory), "hook event claude"));
        for path in [directory, state] {
            let is_elsewhere = path.starts_with('/') && !Path::new(path).starts_with(place.path(""));
            assert!(is_elsewhere, "{path:?} is not temporary");
            assert!(!Path::new(path).exists(), "{path} remains");
        }
        assert_ne!(directory, state);
        events.push(input["hook_event_name"].as_str().unwrap().to_owned());
    }
    events.sort();
    events.dedup();
    assert_eq!(events.len(), 11);
    assert!(!place.path("home/.local").exists());
}

#[test]
fn a_failing_hook_and_a_missing_program_are_problems() {
    let place = Place::with_claude("2.1.332");
    place.succeeds("hook install claude --yes");
    let program = place.program("other/foldlog", "echo broken >&2; exit 3");
    set_program(&place, &program);
    let failing = place.foldlog("hook status claude --json");
    let document = failing.json();
    assert_eq!((failing.code, &document["is_well"]), (1, &json!(false)));
    assert_eq!(document["files"][0]["hooks"][0]["exit_code"], json!(3));
    assert!(problems(&document).contains(&"SessionStart: exit status: 3: broken"), "{document}");
    let shown = place.foldlog("hook status claude").stdout;
    assert!(shown.contains("  Stop               exit code 3, "), "{shown}");

    fs::remove_file(&program).unwrap();
    let missing = place.foldlog("hook status claude --json");
    let absent = format!("{} does not exist", program.display());
    assert_eq!(missing.code, 1);
    assert!(problems(&missing.json()).contains(&absent.as_str()), "{missing:?}");
}

#[test]
fn events_and_settings_that_stop_hooks_are_problems() {
    let place = Place::with_claude("2.0.44");
    place.succeeds("hook install claude --yes");
    place.set_claude("2.1.332");
    let shown = place.foldlog("hook status claude").stdout;
    let state = "settings.json: installed incompletely: foldlog does not learn of failed calls, other directories \
                 of a session, questions for permission\n  problem: no hook for ";
    assert!(shown.contains(state), "{shown}");
    let missing = place.foldlog("hook status claude --json").json();
    assert_eq!(
        problems(&missing),
        ["no hook for CwdChanged, DirectoryAdded, PermissionRequest, PostToolUseFailure; \
          `foldlog hook install claude --user` adds it"]
    );
    place.succeeds("hook install claude --yes");
    place.set_claude("2.0.44");
    let unknown = place.foldlog("hook status claude --json").json();
    assert_eq!(
        problems(&unknown),
        ["Claude Code 2.0.44 may ignore this file: it does not know PostToolUseFailure, PermissionRequest, \
          CwdChanged, DirectoryAdded"]
    );
    place.set_claude("2.1.332");
    place.write_settings(&place.read_settings().replacen('{', "{ \"disableAllHooks\": true,", 1));
    let disabled = place.foldlog("hook status claude --json");
    assert_eq!((disabled.code, problems(&disabled.json()).len()), (1, 1), "{disabled:?}");
}

#[test]
fn a_moved_program_refuses_no_tool_and_the_report_names_the_repair() {
    let place = Place::with_claude("2.1.332");
    let (old, new) = (place.link("old/foldlog"), place.path("bin/foldlog"));
    ran(&mut place.command(&old, "hook install claude --yes"));
    let (_, command) = commands(&place.read_settings()).remove(0);
    fs::rename(&old, &new).unwrap();

    // Only the exit code 2 of a hook refuses a tool. Claude Code shows this one's error to the user.
    let hook = ran(place.command("sh", "").args(["-c", &command]));
    assert_eq!(hook.code, 127, "{hook:?}");
    let status = ran(&mut place.command(&new, "hook status claude"));
    assert_eq!(status.code, 1);
    assert!(status.stdout.contains(&format!("  problem: {} does not exist\n", old.display())), "{status:?}");
    assert!(status.stderr.contains("`foldlog hook install claude --user` names this program"), "{status:?}");

    ran(&mut place.command(&new, "hook install claude --yes"));
    assert_eq!(ran(&mut place.command(&new, "hook status claude")).code, 0);
    // An upgrade replaces the file at the same path.
    fs::remove_file(&new).unwrap();
    place.link("bin/foldlog");
    assert_eq!(ran(&mut place.command(&new, "hook status claude")).code, 0);
}

#[test]
fn the_newest_events_are_in_no_file_that_people_with_older_versions_share() {
    let place = Place::with_claude("2.1.332");
    place.link("bin/foldlog");
    let shared = place.succeeds("hook install claude --shared --yes --json").json();
    assert_eq!(shared["left_out"], json!(["CwdChanged", "DirectoryAdded"]));
    assert_eq!(place.foldlog("hook status claude --json").json()["files"][2]["problems"], json!([]));
}
