//! Runs each example and checks that it prints its expected results.

#![allow(clippy::expect_used)]

use std::process::Command;

#[track_caller]
fn prints(program: &str, lines: &[&str]) {
    let ran = Command::new(program).output().expect("an example starts");
    let (out, errors) = (String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
    assert!(ran.status.success(), "{out}{errors}");
    for line in lines {
        assert!(out.contains(line), "`{line}` is not in:\n{out}{errors}");
    }
}

#[test]
fn a_chat_keeps_its_notes_behind_a_rollback() {
    let lines = ["[x] read the issue\n", "note: rewriting everything does not help\n"];
    prints(env!("CARGO_BIN_EXE_chat_state"), &lines);
}

#[test]
fn a_tool_that_fails_leaves_its_directory_as_it_was() {
    let lines =
        ["success: true", "success: false", "settings.json is no JSON", "settings.json: {\"dark\": true}\n"];
    prints(env!("CARGO_BIN_EXE_tools_on_a_directory"), &lines);
}

#[test]
fn a_killed_call_is_recovered_by_the_next_process() {
    let lines = [
        "the host ended by itself: false; version is: half done\n",
        "interrupted: true\n",
        "recovered 1; version is: 1.0\n",
        "`release` is settled as failed\n",
    ];
    prints(env!("CARGO_BIN_EXE_crash_and_recover"), &lines);
}

#[test]
fn a_worker_whose_machine_is_lost_is_survived_by_another_one_with_its_files() {
    let lines = [
        "the first worker ended by itself: false\n",
        "interrupted: true\n",
        "filled, with version 1.0\n",
        "recovered: `release`\n",
        "version: 1.1\n",
        "version: 1.2\n",
    ];
    prints(env!("CARGO_BIN_EXE_surviving_worker"), &lines);
}

#[test]
fn a_hundred_agents_share_one_thread_and_a_call_that_is_given_up_leaves_nothing() {
    prints(
        env!("CARGO_BIN_EXE_async_host"),
        &["100 agents went to 300 places, on one thread\n", "100 agents went to 300 places, on two\n"],
    );
}

#[test]
fn sessions_of_several_threads_and_a_fork_are_listed() {
    let lines = ["3 items, and 3 in the fork\n", "4 sessions\n"];
    prints(env!("CARGO_BIN_EXE_many_sessions"), &lines);
}

#[test]
fn a_conversation_that_is_killed_within_a_call_is_ended_by_the_next_process() {
    let lines = [
        "the first process ended by itself: false\n",
        "the model: The page is written.\n",
        "answers that the second process asked for: 1\n",
        "index: new\n",
        "Tool: \"page and index are written\"\n",
    ];
    prints(env!("CARGO_BIN_EXE_conversation"), &lines);
}

#[test]
fn a_tree_of_tasks_whose_process_was_killed_is_worked_through_by_the_next() {
    let lines =
        ["the first process ended by itself: false\n", "was interrupted: draft\n", "completed: 4 of 4\n"];
    prints(env!("CARGO_BIN_EXE_task_tree"), &lines);
}

#[test]
fn a_host_is_replayed_and_a_changed_one_is_told_where_it_differs() {
    let lines = [
        "the same host agrees: 2 processes\n",
        " (tool_begin `publish`) differs at $.arguments.title: recorded \"news of ",
        "letters of the fork: 3\n",
        "its page: gossip of ",
    ];
    prints(env!("CARGO_BIN_EXE_replay_in_ci"), &lines);
}

#[test]
fn conversations_share_one_thread_and_one_that_is_given_up_goes_on() {
    let lines = ["I heard: snow in Oslo\n", "I heard: snow in Rome\n", "I heard: dropped without an end\n"];
    prints(env!("CARGO_BIN_EXE_tokio_host"), &lines);
}

#[test]
fn a_hosts_own_events_hold_the_law_of_rollback() {
    prints(env!("CARGO_BIN_EXE_property_test"), &["64 histories hold\n"]);
}

#[test]
fn a_host_that_learns_its_tools_at_run_time_runs_them_as_transactions() {
    let lines = [
        "tools: burn_card, put_card\n",
        "put_card: committed: card 7 is put\n",
        "burn_card: failed: `burn_card` is out of matches\n",
        "put_card: failed: missing parameters: id\n",
        "cards: [{\"id\":7}]; history: 2\n",
    ];
    prints(env!("CARGO_BIN_EXE_dynamic_tool"), &lines);
}

#[test]
fn a_read_model_that_is_killed_twice_neither_repeats_nor_loses_an_event() {
    let lines = ["the read model ended by itself: false\n", "50 rows, as the session has them\n"];
    prints(env!("CARGO_BIN_EXE_read_model"), &lines);
}

#[test]
fn workers_that_are_killed_and_paused_bring_each_conversation_to_its_end() {
    let lines = [
        "50 conversations of 3 turns, each turn there once\n",
        "workers killed: 12",
        "conversations taken over: ",
    ];
    prints(env!("CARGO_BIN_EXE_worker_pool"), &lines);
}

#[test]
fn an_approved_call_runs_and_the_conversation_continues() {
    prints(env!("CARGO_BIN_EXE_approval"), &["waits: Buy a boat?\nYou have a boat.\n"]);
}
