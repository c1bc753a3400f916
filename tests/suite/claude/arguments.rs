//! The arguments, environment and directories with which the program is started.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use foldlog_claude::{
    ARGUMENT_MAX, Client, ClientOptions, ErrorKind, HookMatcher, NoCallbacks, PASSED_VARIABLES,
    PermissionMode, SettingSource, SystemPrompt,
};
use serde_json::{Value, json};

use super::stand_in::{StandIn, turn};

fn arguments(options: &ClientOptions) -> Vec<String> {
    options.arguments().unwrap().into_iter().map(|argument| argument.into_string().unwrap()).collect()
}

fn options() -> ClientOptions {
    ClientOptions::new("claude", "/work")
}

#[test]
fn nothing_chosen_isolates_the_program_from_settings_and_servers() {
    let expected = [
        "--output-format=stream-json",
        "--verbose",
        "--system-prompt=",
        "--strict-mcp-config",
        "--setting-sources=",
        "--input-format=stream-json",
    ];
    assert_eq!(arguments(&options()), expected);
}

#[test]
fn each_option_becomes_one_argument() {
    let all = ClientOptions {
        model: Some("m".into()),
        fallback_model: Some("n".into()),
        system_prompt: SystemPrompt::Append("more".into()),
        tools: Some(vec![]),
        allowed_tools: vec!["Read".into(), "Bash(git log:*)".into()],
        disallowed_tools: vec!["Write".into()],
        permission_mode: Some(PermissionMode::DontAsk),
        max_turns: Some(3),
        max_budget_usd: Some(0.5),
        resume: Some("old".into()),
        session_id: Some("new".into()),
        fork_session: true,
        resume_session_at: Some("uuid".into()),
        session_mirror: true,
        settings: json!({"a": 1}).as_object().cloned(),
        add_dirs: vec!["/a".into(), "/b".into()],
        setting_sources: vec![SettingSource::User, SettingSource::Local],
        json_schema: Some(json!({"type": "object"})),
        include_partial_messages: true,
        bridged_servers: vec!["wink".into()],
        can_use_tool: true,
        ..options()
    };
    let expected = [
        "--output-format=stream-json",
        "--verbose",
        "--append-system-prompt=more",
        "--tools=",
        "--allowedTools=Read,Bash(git log:*)",
        "--max-turns=3",
        "--max-budget-usd=0.5",
        "--disallowedTools=Write",
        "--model=m",
        "--fallback-model=n",
        "--permission-prompt-tool=stdio",
        "--permission-mode=dontAsk",
        "--resume=old",
        "--session-id=new",
        r#"--settings={"a":1}"#,
        "--add-dir=/a",
        "--add-dir=/b",
        r#"--mcp-config={"mcpServers":{"wink":{"name":"wink","type":"sdk"}}}"#,
        "--include-partial-messages",
        "--strict-mcp-config",
        "--fork-session",
        "--resume-session-at=uuid",
        "--session-mirror",
        "--setting-sources=user,local",
        r#"--json-schema={"type":"object"}"#,
        "--input-format=stream-json",
    ];
    assert_eq!(arguments(&all), expected);
}

#[test]
fn no_value_becomes_a_flag_however_it_begins() {
    let evil = || "--dangerously-skip-permissions".to_owned();
    let all = ClientOptions {
        model: Some(evil()),
        fallback_model: Some(evil()),
        system_prompt: SystemPrompt::Text(evil()),
        tools: Some(vec![evil()]),
        allowed_tools: vec![evil()],
        disallowed_tools: vec![evil()],
        resume: Some(evil()),
        add_dirs: vec![evil().into()],
        resume_session_at: Some(evil()),
        ..options()
    };
    let arguments = arguments(&all);
    assert!(!arguments.contains(&evil()));
    assert_eq!(arguments.iter().filter(|argument| argument.ends_with(&format!("={}", evil()))).count(), 9);
}

#[test]
fn what_no_argument_can_hold_is_refused_by_the_name_of_its_flag() {
    let long = "x".repeat(ARGUMENT_MAX);
    for (bad, flag) in [
        (ClientOptions { model: Some("a\0b".into()), ..options() }, "--model"),
        (ClientOptions { json_schema: Some(long.clone().into()), ..options() }, "--json-schema"),
        (ClientOptions { system_prompt: SystemPrompt::Text(long), ..options() }, "--system-prompt"),
    ] {
        let error = bad.arguments().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Options);
        assert!(error.to_string().contains(flag), "{error}");
    }
    let fits = "x".repeat(ARGUMENT_MAX - "--model=".len());
    assert!(ClientOptions { model: Some(fits), ..options() }.arguments().is_ok());
}

#[test]
fn options_of_a_session_that_contradict_each_other_are_refused() {
    for bad in [
        ClientOptions { resume: Some("a".into()), session_id: Some("b".into()), ..options() },
        ClientOptions { fork_session: true, ..options() },
        ClientOptions { resume_session_at: Some("a".into()), ..options() },
    ] {
        assert_eq!(bad.arguments().unwrap_err().kind(), ErrorKind::Options);
    }
}

#[test]
fn modes_are_read_by_their_names_and_no_others() {
    for name in ["default", "acceptEdits", "plan", "bypassPermissions", "dontAsk", "auto"] {
        assert_eq!(name.parse::<PermissionMode>().unwrap().name(), name);
    }
    let error = "acceptedits".parse::<PermissionMode>().unwrap_err();
    assert!(error.to_string().contains("acceptEdits"), "{error}");
}

#[test]
fn initialize_names_the_hooks_and_what_was_chosen() {
    let mut chosen = options();
    assert_eq!(chosen.initialize_request(), json!({"subtype": "initialize", "hooks": null}));
    let reading = HookMatcher {
        matcher: Some("Read|Write".into()),
        timeout: Some(Duration::from_millis(100)),
        ..HookMatcher::new("PreToolUse", "hook_0")
    };
    let all = HookMatcher { timeout: None, ..HookMatcher::new("PreToolUse", "hook_1") };
    chosen.hooks = vec![reading, all];
    chosen.agents = Some(serde_json::Map::new());
    chosen.skills = Some(vec![]);
    chosen.system_prompt_snapshot = Some(false);
    let expected = json!({
        "subtype": "initialize",
        "hooks": {"PreToolUse": [
            {"matcher": "Read|Write", "hookCallbackIds": ["hook_0"], "timeout": 1},
            {"matcher": null, "hookCallbackIds": ["hook_1"]},
        ]},
        "agents": {}, "skills": [], "systemPromptSnapshot": false,
    });
    assert_eq!(chosen.initialize_request(), expected);
}

/// A key in the host's environment must not reach a program that runs a model's commands.
#[test]
fn the_program_gets_no_variable_that_the_options_do_not_name() {
    let host = [("PATH", "/bin"), ("HOME", "/root"), ("SECRET", "key"), ("WANTED", "w"), ("CLAUDECODE", "1")];
    let host = || host.map(|(name, value)| (OsString::from(name), OsString::from(value)));
    let mut options = options();
    options.pass_variables.extend(["WANTED".into(), "CLAUDECODE".into()]);
    options.variables.set("DISABLE_TELEMETRY", "0");
    let given = options.environment(host());
    assert_eq!(given.get("PATH").unwrap(), "/bin");
    assert_eq!(given.get("HOME").unwrap(), "/root");
    assert_eq!(given.get("WANTED").unwrap(), "w");
    assert_eq!(given.get("PWD").unwrap(), "/work");
    assert_eq!(given.get("DISABLE_TELEMETRY").unwrap(), "0", "the options come last");
    assert_eq!(given.get("SECRET"), None);
    assert_eq!(given.get("CLAUDECODE"), None);
    options.home = Some("/fresh".into());
    assert_eq!(options.environment(host()).get("HOME").unwrap(), "/fresh");
    options.variables.set("ANTHROPIC_API_KEY", "sk-secret");
    let shown = format!("{options:?}");
    assert!(shown.contains("ANTHROPIC_API_KEY") && !shown.contains("sk-secret"), "{shown}");
}

#[test]
fn the_program_sees_the_environment_and_the_directory_that_were_chosen() {
    let stand_in = StandIn::new(&json!([]));
    stand_in.start().unwrap().close().unwrap();
    let [start] = &stand_in.starts()[..] else { panic!("one start") };
    let environment = start["environment"].as_object().unwrap();
    let directory = |name: &str| Value::from(stand_in.path(name).to_str().unwrap());
    for (name, value) in
        [("HOME", "home"), ("TMPDIR", "tmp"), ("CLAUDE_CONFIG_DIR", "config"), ("PWD", "work")]
    {
        assert_eq!(environment[name], directory(value), "{name}");
    }
    let set = [
        "HOME",
        "TMPDIR",
        "CLAUDE_CONFIG_DIR",
        "PWD",
        "STAND_IN_SCRIPT",
        "CLAUDE_CODE_ENTRYPOINT",
        "CLAUDE_CODE_SDK_READS_SESSION_STATE",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC",
        "DISABLE_TELEMETRY",
        "DISABLE_ERROR_REPORTING",
        "DISABLE_AUTOUPDATER",
    ];
    let is_meant = |name: &str| set.contains(&name) || PASSED_VARIABLES.contains(&name);
    let others: Vec<&String> = environment.keys().filter(|name| !is_meant(name)).collect();
    assert!(others.is_empty(), "{others:?}");
    assert_eq!(start["cwd"], directory("work"));
}

#[test]
fn a_system_prompt_beyond_an_argument_goes_by_a_private_file_that_is_removed() {
    let stand_in = StandIn::new(&json!([{"turn": true}, {"result": "ok"}]));
    let mut options = stand_in.options();
    options.system_prompt = SystemPrompt::Text("long ".repeat(40_000));
    let client = Client::start(&options, Arc::new(NoCallbacks)).unwrap();
    turn(&client, "go");
    let start = &stand_in.starts()[0];
    let flags = start["arguments"].as_array().unwrap().iter().filter_map(Value::as_str);
    let flag = flags.filter_map(|flag| flag.strip_prefix("--system-prompt-file=")).next().unwrap();
    assert_eq!(fs::read_to_string(flag).unwrap(), "long ".repeat(40_000));
    assert_eq!(fs::metadata(flag).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(Path::new(flag).parent().unwrap(), stand_in.path("tmp"));
    client.close().unwrap();
    drop(client);
    assert!(fs::read_dir(stand_in.path("tmp")).unwrap().next().is_none(), "the file is removed");
}

/// The program reports this only on standard error, after its start.
#[test]
fn bypassing_permissions_as_root_is_refused_before_the_program_starts() {
    let stand_in = StandIn::new(&json!([]));
    let mut options = stand_in.options();
    options.permission_mode = Some(PermissionMode::BypassPermissions);
    if !rustix::process::getuid().is_root() {
        return foldlog_test_support::skipped("nobody is root");
    }
    let error = Client::start(&options, Arc::new(NoCallbacks)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::RootRefused);
    assert!(error.to_string().contains("IS_SANDBOX=1"), "{error}");
    assert!(!stand_in.path("script.starts").exists());
    options.variables.set("CLAUDE_CODE_BUBBLEWRAP", "true");
    Client::start(&options, Arc::new(NoCallbacks)).unwrap();
}
