//! Hooks of Codex and Gemini CLI.

use std::fs;

use serde_json::{Value, json};

use super::place::{Place, commands};

const AGENTS: [(&str, &str, &str, usize); 2] = [
    ("codex", "codex-cli 0.171.0", "home/.codex/hooks.json", 9),
    ("gemini", "0.61.0", "home/.gemini/settings.json", 6),
];

fn place(agent: &str, version: &str) -> Place {
    let place = Place::new();
    place.program(&format!("bin/{agent}"), &format!("[ \"$*\" = --version ] && echo '{version}'"));
    place
}

#[test]
fn hooks_are_installed_and_uninstalled_without_a_trace() {
    for (agent, version, file, count) in AGENTS {
        let place = place(agent, version);
        let ran = place.succeeds(&format!("hook install {agent} --yes"));
        assert!(ran.stdout.contains(&format!("\ninstalled {count} hooks in ")), "{}", ran.stdout);
        assert_eq!(ran.stderr.contains("Trust all and continue"), agent == "codex", "{}", ran.stderr);
        let command = match agent {
            "codex" => "and `foldlog undo`, in a terminal or at its prompt, undoes one",
            _ => "and `foldlog undo`, or `/undo` at its prompt, undoes one",
        };
        assert!(ran.stderr.contains(command), "{}", ran.stderr);
        let text = fs::read_to_string(place.path(file)).unwrap();
        let command = format!("{} hook event {agent}", env!("CARGO_BIN_EXE_foldlog"));
        assert_eq!(commands(&text).len(), count);
        assert!(commands(&text).iter().all(|(_, other)| *other == command), "{text}");

        let again = place.succeeds(&format!("hook install {agent}"));
        assert!(again.stdout.starts_with("already installed: "), "{}", again.stdout);
        place.succeeds(&format!("hook uninstall {agent} --yes"));
        assert!(!place.path(file).parent().unwrap().exists());
    }
}

#[test]
fn a_hook_has_the_form_and_the_units_of_its_agent() {
    let read = |place: &Place, file: &str| -> Value {
        serde_json::from_str(&fs::read_to_string(place.path(file)).unwrap()).unwrap()
    };
    let codex = place("codex", "codex-cli 0.171.0");
    codex.succeeds("hook install codex --yes");
    let hooks = &read(&codex, "home/.codex/hooks.json")["hooks"];
    assert_eq!(hooks["PreToolUse"][0]["hooks"][0]["timeout"], 30);
    // Codex reports a longer time as a mistake.
    assert_eq!(hooks["Interrupt"][0]["hooks"][0]["timeout"], 3);

    let gemini = place("gemini", "0.61.0");
    gemini.succeeds("hook install gemini --yes");
    let hooks = &read(&gemini, "home/.gemini/settings.json")["hooks"];
    assert_eq!(hooks["BeforeTool"][0]["hooks"][0]["timeout"], 30_000);
    assert_eq!(hooks["BeforeTool"][0]["hooks"][0]["name"], "foldlog");
    let command = fs::read_to_string(gemini.path("home/.gemini/commands/undo.toml")).unwrap();
    assert!(command.contains("\n/undo {{args}}\n"), "{command}");
}

#[test]
fn an_older_version_gets_fewer_events() {
    let place = place("codex", "codex-cli 0.140.0");
    let ran = place.succeeds("hook install codex --yes --json");
    assert_eq!(ran.json()["left_out"], json!(["PreModelRequest", "Interrupt", "SessionEnd"]));
    assert!(ran.stderr.contains("Codex 0.140.0 does not know these events"), "{}", ran.stderr);
}

#[test]
fn hooks_of_an_agent_do_not_touch_those_of_another() {
    let place = place("gemini", "0.61.0");
    let file = place.path("home/.gemini/settings.json");
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    let text = "// mine\n{\n  \"hooks\": {\n    \"disabled\": [\"mine\"],\n    \"BeforeTool\": [{ \"hooks\": [{ \"type\": \"command\", \"command\": \"foldlog hook event claude\" }] }]\n  }\n}\n";
    fs::write(&file, text).unwrap();
    place.succeeds("hook install gemini --yes");
    assert_eq!(fs::read_to_string(&file).unwrap().matches("hook event claude").count(), 1);
    place.succeeds("hook uninstall gemini --yes");
    assert_eq!(fs::read_to_string(&file).unwrap(), text);
}

#[test]
fn the_project_has_one_file_for_all_of_its_people() {
    let place = place("codex", "codex-cli 0.171.0");
    place.succeeds("hook install codex --shared --yes");
    let file = place.path("project/.codex/hooks.json");
    let text = fs::read_to_string(&file).unwrap();
    let command = "command -v foldlog >/dev/null || exit 0; foldlog hook event codex";
    assert!(commands(&text).iter().all(|(_, other)| other == command), "{text}");
    place.succeeds("hook install codex --project --yes");
    let own = format!("{} hook event codex", env!("CARGO_BIN_EXE_foldlog"));
    let text = fs::read_to_string(&file).unwrap();
    assert!(commands(&text).iter().all(|(_, other)| *other == own), "{text}");
    let status = place.foldlog("hook status codex --json").json();
    assert_eq!(status["files"].as_array().unwrap().len(), 2);
    place.succeeds("hook uninstall codex --project --yes");
    assert!(!file.exists());
}

/// Answers like `codex app-server`, with hooks of a trust.
fn set_app_server(place: &Place, trust: &str) {
    let file = place.path("home/.codex/hooks.json");
    let command = format!("{} hook event codex", env!("CARGO_BIN_EXE_foldlog"));
    let hook = |event: &str| json!({"key": "k", "eventName": event, "handlerType": "command", "command": command, "sourcePath": file, "enabled": true, "currentHash": "sha256:1", "trustStatus": trust});
    let hooks = json!([hook("preToolUse"), hook("stop")]);
    let answer =
        json!({"id": 2, "result": {"data": [{"cwd": "/", "hooks": hooks, "warnings": [], "errors": []}]}});
    let script = format!(
        "case $1 in --version) echo codex-cli 0.171.0 ;; app-server) read line; echo '{{\"id\":1,\"result\":{{}}}}'; read line; read line; echo '{answer}'; cat ;; esac"
    );
    place.program("bin/codex", &script);
}

#[test]
fn the_status_of_codex_reports_whether_it_trusts_the_hooks() {
    let place = place("codex", "codex-cli 0.171.0");
    place.succeeds("hook install codex --yes");
    let unknown = place.foldlog("hook status codex");
    assert_eq!(unknown.code, 0, "{unknown:?}");
    assert!(unknown.stderr.contains("it is unknown whether Codex trusts these hooks"), "{unknown:?}");

    set_app_server(&place, "untrusted");
    let untrusted = place.foldlog("hook status codex");
    assert_eq!(untrusted.code, 1);
    assert!(
        untrusted.stdout.contains("problem: not trusted yet: Codex runs none of 2 hooks"),
        "{untrusted:?}"
    );
    set_app_server(&place, "trusted");
    let trusted = place.succeeds("hook status codex --json").json();
    assert_eq!((&trusted["agent"], &trusted["is_well"]), (&json!("codex"), &json!(true)));
    assert_eq!(trusted["agent_version"], "0.171.0");
}

#[test]
fn each_hook_of_gemini_cli_runs_once_for_the_status() {
    let place = place("gemini", "0.61.0");
    place.succeeds("hook install gemini --yes");
    let document = place.succeeds("hook status gemini --json").json();
    let hooks = document["files"][0]["hooks"].as_array().unwrap();
    assert_eq!(hooks.len(), 6);
    assert!(hooks.iter().all(|hook| hook["exit_code"] == 0), "{hooks:?}");
    let file = place.path("home/.gemini/settings.json");
    let text = fs::read_to_string(&file).unwrap();
    fs::write(&file, text.replacen('{', "{ \"hooksConfig\": { \"enabled\": false },", 1)).unwrap();
    let disabled = place.foldlog("hook status gemini");
    assert!(
        disabled.stdout.contains("problem: `hooksConfig.enabled` is false, so no hook runs"),
        "{disabled:?}"
    );
}
