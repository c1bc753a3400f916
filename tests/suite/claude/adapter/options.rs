//! A host's choices about the program and its model, and how they reach the program.

use std::ffi::OsString;

use foldlog_agent::adapter_state::StatefulAdapter as _;
use foldlog_agent::provider::{Delta, LlmConfig};
use foldlog_agent::{Error, EvaluateOptions, EvaluationPhase};
use foldlog_claude::{
    ClaudeAgentSDKAdapter, ClaudeAgentSDKClientConfig, ClaudeAgentSDKModelConfig, DEFAULT_MODEL,
    PermissionMode, RunOptions, SandboxSettings, SettingSource,
};
use serde_json::{Value, json};

use super::world::{Host, World, asking, native, prompt};

fn said() -> Value {
    json!([{"turn": true}, {"text": "ok"}, {"result": "ok"}])
}

/// Evaluates with an adapter over a program that says `ok`.
fn with(adapter: impl Fn(&Host) -> ClaudeAgentSDKAdapter) -> World {
    let world = World::new(&said());
    world.run(|host| assert_eq!(host.ask_with(&adapter(host), "Go.").unwrap().text, "ok"));
    world
}

#[test]
fn the_defaults_are_isolation_the_programs_model_and_no_tool_of_the_programs_own() {
    let config = ClaudeAgentSDKClientConfig::default();
    assert_eq!(config.permission_mode, PermissionMode::BypassPermissions);
    assert!(config.cwd.is_none() && config.add_dirs.is_empty() && config.env.is_empty());
    assert!(config.setting_sources.is_empty() && !config.project_servers && config.sandbox.is_none());
    let model = ClaudeAgentSDKModelConfig::default();
    // The specification's default model was retired: it is a constant, and no run requests it
    // implicitly.
    assert_eq!((model.model, DEFAULT_MODEL), (None, "claude-sonnet-4-20250514"));
    assert_eq!((model.temperature, model.max_tokens, model.top_p), (None, None, None));
    assert_eq!(ClaudeAgentSDKAdapter::new().session_id(), None);

    let world = with(Host::adapter);
    assert_eq!(world.argument("--model"), None);
    assert_eq!(world.argument("--tools").as_deref(), Some(""));
    assert_eq!(world.argument("--allowedTools").as_deref(), Some("mcp__wink__add,mcp__wink__weather"));
    assert_eq!(world.argument("--setting-sources").as_deref(), Some(""));
    assert_eq!(world.argument("--max-turns"), None);
    assert_eq!(world.argument("--max-budget-usd"), None);
    let arguments = world.arguments();
    assert!(arguments.iter().any(|argument| argument == "--strict-mcp-config"));
    assert!(arguments.iter().any(|argument| argument == "--session-mirror"));
}

#[test]
fn directories_variables_sources_and_the_sandbox_reach_the_program() {
    let world = with(|host| {
        let mut config = host.config();
        config.add_dirs = vec!["/tmp/libs".into(), "/tmp/data".into()];
        config.env.insert(OsString::from("OF_THE_HOST"), OsString::from("told"));
        config.setting_sources = vec![SettingSource::User, SettingSource::Project];
        config.project_servers = true;
        config.sandbox = Some(SandboxSettings {
            exclude_commands: vec!["git".to_owned()],
            allow_local_binding: true,
            allow_unix_sockets: false,
        });
        host.adapter().with_client_config(config)
    });
    let start = world.starts().pop().unwrap();
    assert_eq!(start["cwd"], json!(world.workspace().canonicalize().unwrap()));
    assert_eq!(start["environment"]["OF_THE_HOST"], "told");
    let arguments = world.arguments();
    for directory in ["--add-dir=/tmp/libs", "--add-dir=/tmp/data"] {
        assert!(arguments.iter().any(|argument| argument == directory), "{arguments:?}");
    }
    assert_eq!(world.argument("--setting-sources").as_deref(), Some("user,project"));
    assert!(!arguments.iter().any(|argument| argument == "--strict-mcp-config"), "{arguments:?}");
    let settings: Value = serde_json::from_str(&world.argument("--settings").unwrap()).unwrap();
    let expected = json!({"sandbox": {"enabled": true, "excludedCommands": ["git"],
        "network": {"allowLocalBinding": true, "allowAllUnixSockets": false}}});
    assert_eq!(settings, expected);
}

#[test]
fn what_a_sandbox_allows_reaches_the_program_under_its_own_name() {
    let sandbox = SandboxSettings {
        exclude_commands: Vec::new(),
        allow_local_binding: false,
        allow_unix_sockets: true,
    };
    let world = with(|host| {
        let config = ClaudeAgentSDKClientConfig { sandbox: Some(sandbox.clone()), ..host.config() };
        host.adapter().with_client_config(config)
    });
    let settings: Value = serde_json::from_str(&world.argument("--settings").unwrap()).unwrap();
    let network = json!({"allowLocalBinding": false, "allowAllUnixSockets": true});
    assert_eq!(settings["sandbox"]["network"], network);
}

#[test]
fn each_permission_mode_reaches_the_program_by_its_name() {
    for mode in [PermissionMode::Default, PermissionMode::AcceptEdits, PermissionMode::Plan] {
        let world = with(|host| {
            let config = ClaudeAgentSDKClientConfig { permission_mode: mode, ..host.config() };
            host.adapter().with_client_config(config)
        });
        assert_eq!(world.argument("--permission-mode").as_deref(), Some(mode.name()));
        assert_eq!(world.argument("--permission-prompt-tool").as_deref(), Some("stdio"));
    }
    let bypassing = with(|host| {
        let mut config = host.config();
        config.permission_mode = PermissionMode::BypassPermissions;
        config.env.insert(OsString::from("IS_SANDBOX"), OsString::from("1"));
        host.adapter().with_client_config(config)
    });
    assert_eq!(bypassing.argument("--permission-mode").as_deref(), Some("bypassPermissions"));
    assert_eq!(bypassing.argument("--permission-prompt-tool"), None);
    let names = ["default", "acceptEdits", "plan", "bypassPermissions"];
    assert!(names.iter().all(|name| name.parse::<PermissionMode>().unwrap().name() == *name));
    assert!("bypass".parse::<PermissionMode>().is_err());
}

#[test]
fn the_model_and_the_limits_of_a_run_reach_the_program() {
    let world = with(|host| {
        let model = ClaudeAgentSDKModelConfig {
            model: Some("claude-opus".to_owned()),
            fallback_model: Some("claude-haiku".to_owned()),
            max_tokens: Some(777),
            ..ClaudeAgentSDKModelConfig::default()
        };
        let options =
            RunOptions { max_turns: Some(7), max_budget_usd: Some(0.5), ..native(&["Read", "Bash"]) };
        host.adapter().with_model_config(model).with_options(options)
    });
    assert_eq!(world.argument("--model").as_deref(), Some("claude-opus"));
    assert_eq!(world.argument("--fallback-model").as_deref(), Some("claude-haiku"));
    assert_eq!(world.argument("--max-turns").as_deref(), Some("7"));
    assert_eq!(world.argument("--max-budget-usd").as_deref(), Some("0.5"));
    assert_eq!(world.argument("--tools").as_deref(), Some("Read,Bash"));
    let environment = &world.starts()[0]["environment"];
    assert_eq!(environment["CLAUDE_CODE_MAX_OUTPUT_TOKENS"], "777");
    assert_eq!(environment["CLAUDE_CODE_DISABLE_BACKGROUND_TASKS"], "1");
}

/// The program has no flag for them, and silently ignoring them would answer another question.
#[test]
fn temperature_and_top_p_are_refused_by_name_before_anything_is_done() {
    let world = World::new(&said());
    world.run_unreplayed(|host| {
        let general = LlmConfig { temperature: Some(0.5), top_p: Some(0.9), ..LlmConfig::default() };
        let cases = [
            (ClaudeAgentSDKModelConfig::default().with_llm_config(&general), "temperature and top_p"),
            (
                ClaudeAgentSDKModelConfig { top_p: Some(0.9), ..ClaudeAgentSDKModelConfig::default() },
                "does not support top_p",
            ),
        ];
        for (model, named) in cases {
            let error = host.ask_with(&host.adapter().with_model_config(model), "Go.").unwrap_err();
            assert_eq!(error.phase(), Some(EvaluationPhase::Request));
            assert!(error.to_string().contains(named), "{error}");
        }
        // No delta was streamed or reported.
        let told = |_: Delta<'_>| panic!("something was streamed");
        let messages = asking("Go.").messages;
        let options =
            EvaluateOptions { messages, on_delta: Some(Box::new(told)), ..EvaluateOptions::default() };
        let error = host.adapter().evaluate(&prompt(), &host.state, options).unwrap_err();
        assert!(error.to_string().contains("leave out `on_delta`"), "{error}");
        assert!(
            host.session().conversation().read("run").unwrap().is_none(),
            "a refused evaluation said something"
        );
    });
    assert!(world.starts().is_empty());
}

/// Without a sandbox, the program itself would refuse only after its start.
#[test]
fn to_ask_no_permission_as_root_is_refused_with_a_way_out() {
    if !nix::unistd::geteuid().is_root() {
        return foldlog_test_support::skipped("only root is refused");
    }
    let world = World::new(&said());
    world.run(|host| {
        let config = ClaudeAgentSDKClientConfig {
            permission_mode: PermissionMode::BypassPermissions,
            ..host.config()
        };
        let error = host.ask_with(&host.adapter().with_client_config(config), "Go.").unwrap_err();
        assert!(
            matches!(error, Error::PromptEvaluation { phase: EvaluationPhase::Request, .. }),
            "{error:?}"
        );
        assert!(error.to_string().contains("dontAsk"), "{error}");
    });
    assert!(world.starts().is_empty());
}
