//! The tests of long-running work detect deliberate faults: see `foldlog_test_support::sabotage`.

use foldlog_test_support::sabotage::{Runner, assert_caught, assert_passing};

#[test]
fn the_tests_that_catch_breakages_pass_where_nothing_is_broken() {
    assert_passing(Runner::Persistence);
}

#[test]
fn each_breakage_is_caught_by_the_tests_that_its_row_names() {
    assert_caught(Runner::Persistence);
}
