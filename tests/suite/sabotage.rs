//! The suite detects deliberate faults: see `foldlog_test_support::sabotage`.

use foldlog::filesystem::sabotage::Breakage as OfWorkspaces;
use foldlog::sabotage::Breakage as OfEngine;
use foldlog_agent::sabotage::Breakage as OfAgents;
use foldlog_codec::sabotage::Breakage as OfFormat;
use foldlog_tasks::sabotage::Breakage as OfTasks;
use foldlog_test_support::sabotage::{Runner, assert_caught, assert_passing, read_page, table};

#[test]
fn each_breakage_has_a_row_that_says_what_is_broken() {
    let page = read_page();
    let mut rows: Vec<(&str, &str)> = table(&page).iter().map(|row| (row.breakage, row.what)).collect();
    let mut breakages =
        [OfFormat::ALL, OfWorkspaces::ALL, OfEngine::ALL, OfAgents::ALL, OfTasks::ALL].concat();
    rows.sort_unstable();
    breakages.sort_unstable();
    assert_eq!(rows, breakages);
}

#[test]
fn the_tests_that_catch_breakages_pass_where_nothing_is_broken() {
    assert_passing(Runner::Suite);
}

#[test]
fn each_breakage_is_caught_by_the_tests_that_its_row_names() {
    assert_caught(Runner::Suite);
}
