//! Shows that the program contacts only the API that it was given. `strace` watches it.

use std::ffi::OsString;
use std::fs;
use std::process::Command;

use foldlog_agent::adapter_state::StatefulAdapter;
use foldlog_claude::ClaudeAgentSDKAdapter;
use serde_json::json;

use crate::api::{Answers, Api, call, text};
use crate::native;
use crate::world::{World, cli, command, config, skipped};

#[test]
fn the_program_contacts_nothing_but_the_api() {
    let Some(cli) = cli() else { return };
    let can_trace = Command::new("strace").args(["-qq", "-o", "/dev/null", "true"]).output();
    if !can_trace.is_ok_and(|output| output.status.success()) {
        return skipped("nothing can be traced here by `strace`");
    }
    let world = World::new();
    let page = world.workspace().join("page");
    let api = Api::answering(vec![
        Answers::With(vec![call("toolu_1", "Write", &json!({"file_path": page, "content": "one"}))]),
        Answers::With(vec![text("done")]),
    ]);
    let trace = world.directory.path().join("trace");
    let calls = "trace=connect,sendto,sendmsg,sendmmsg";
    let mut leading: Vec<OsString> =
        ["-f", "-qq", "--seccomp-bpf", "-e", calls, "-o"].map(OsString::from).into();
    let (program, arguments) = command(&cli);
    leading.extend([trace.as_os_str().to_owned(), program]);
    leading.extend(arguments);
    let adapter = ClaudeAgentSDKAdapter::new()
        .with_program("strace", leading)
        .with_client_config(config(&world.workspace(), &api.url()))
        .with_options(native(&["Write"]));
    let response = adapter.evaluate(&world.prompt(), &world.state, world.asking("Write.")).unwrap();
    assert_eq!(response.text, "done");
    let port = api.url().rsplit_once(':').unwrap().1.to_owned();
    let traced = fs::read_to_string(trace).unwrap();
    let to_inet = traced.lines().filter(|line| line.contains("AF_INET"));
    let (own, others): (Vec<&str>, Vec<&str>) =
        to_inet.partition(|line| line.contains("127.0.0.1") && line.contains(&format!("htons({port})")));
    assert!(!own.is_empty(), "no contact of the API was seen: {traced}");
    assert!(others.is_empty(), "the program contacts others: {others:#?}");
}
