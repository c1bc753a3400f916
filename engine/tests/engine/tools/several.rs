//! Answers with several calls: read-only ones run together, and calls that do not run are closed.

use std::sync::Barrier;

use foldlog::{Outcome, RecordKind};

use super::*;

/// Waits for the others, so that it ends only if all of them run at the same time.
struct Meet(Barrier);

#[derive(Deserialize, JsonSchema)]
struct Named {
    name: String,
}

impl Tool for Meet {
    const NAME: &'static str = "meet";
    type Parameters = Named;
    type Output = ();

    fn reads_only(&self) -> bool {
        true
    }

    fn call(&self, named: Named, _: &ToolContext) -> std::result::Result<ToolResult<()>, ToolError> {
        self.0.wait();
        if named.name == "b" { Err(ToolError::failed("b fails")) } else { Ok(ToolResult::ok(named.name, ())) }
    }
}

fn reader(run: &Run, count: usize) -> ToolRunner {
    let tools = ToolRegistry::new().with(Meet(Barrier::new(count)));
    ToolRunner::new(run.runner.state().clone(), tools)
}

#[test]
fn calls_that_only_read_run_together_and_end_in_their_order() {
    let run = Run::new();
    let answer = run.session().dispatch(Noted { text: "an answer".to_owned() }).unwrap();
    let meet = |(ordinal, name)| {
        ToolCall::new("meet", format!(r#"{{"name":"{name}"}}"#)).with_origin(answer, ordinal)
    };
    let calls: Vec<_> = (0..).zip(["a", "b", "c"]).map(meet).collect();
    let runner = reader(&run, 3);
    let reports = runner.execute_together(&calls, &ExecuteOptions::default());
    let reports: Vec<_> = reports.into_iter().map(Result::unwrap).collect();
    let messages: Vec<_> = reports.iter().map(|report| report.message.as_str()).collect();
    assert_eq!(messages, ["a", "b fails", "c"]);
    assert!(reports.is_sorted_by_key(|report| report.begin) && reports.is_sorted_by_key(|report| report.end));
    // Committed calls are answered from the log: with a barrier for three, no thread could pass it
    // alone.
    let again = runner.execute_together(&[calls[0].clone(), calls[2].clone()], &ExecuteOptions::default());
    assert!(again.into_iter().all(|report| report.unwrap().recorded));
}

/// Any number of read-only calls started as many threads.
#[test]
fn more_calls_than_may_run_together_run_in_groups_and_end_in_their_order() {
    let run = Run::new();
    let answer = run.session().dispatch(Noted { text: "an answer".to_owned() }).unwrap();
    let meet =
        |ordinal| ToolCall::new("meet", format!(r#"{{"name":"{ordinal}"}}"#)).with_origin(answer, ordinal);
    // The barrier opens only for groups of eight.
    let calls: Vec<_> = (0..24).map(meet).collect();
    let options =
        ExecuteOptions { deadline: Some(std::time::Duration::from_secs(60)), ..ExecuteOptions::default() };
    let reports = reader(&run, foldlog::tools::TOGETHER_MAX).execute_together(&calls, &options);
    let reports: Vec<_> = reports.into_iter().map(Result::unwrap).collect();
    assert!(reports.is_sorted_by_key(|report| report.end));
    assert!(reports[7].end < reports[8].begin, "the second group begins once the first has ended");
}

#[test]
fn a_call_that_does_not_run_is_closed_with_its_cause_and_its_text() {
    let run = Run::new();
    let answer = run.session().dispatch(Noted { text: "an answer".to_owned() }).unwrap();
    let before = run.state();
    for (ordinal, cause) in (0..).zip([Cause::UnknownTool, Cause::Skipped, Cause::Denied]) {
        let call = ToolCall::new("nobody", "{no JSON").with_origin(answer, ordinal);
        let report = run.runner.close(&call, cause, "not run").unwrap();
        assert_eq!((report.outcome, report.cause), (Outcome::Failed, Some(cause)));
        assert_eq!(
            (report.message.as_str(), report.success, report.end.get()),
            ("not run", false, report.begin.get() + 1)
        );
    }
    assert_eq!((run.state(), run.session().calls().unsettled_operations().len()), (before, 0));
    let long = "x".repeat(20 << 10);
    let call = ToolCall::new("nobody", "{}");
    assert!(matches!(run.runner.close(&call, Cause::Skipped, &long), Err(Error::TooLarge { .. })));
}

/// The start record of a closed call exists, its end record does not. The tool never ran, so no
/// decision is needed, and it does not run now, although a read-only call would.
#[test]
fn a_recovery_ends_a_call_that_was_about_to_be_closed_as_its_closing_would_have() {
    let mut run = Run::new();
    run.write("letter", "dear all", Then::Succeed).unwrap();
    let answer = run.session().dispatch(Noted { text: "an answer".to_owned() }).unwrap();
    let call = call("letter", "another", Then::Succeed).with_origin(answer, 0);
    let (disk, begun) = (run.disk.clone(), run.session().log().position().unwrap().get() + 1);
    let _killer = run.session().log().subscribe(move |record| {
        if record.kind() == RecordKind::ToolBegin && record.sequence().get() == begun {
            disk.crash(CrashKind::Process);
        }
    });
    run.runner.close(&call, Cause::Skipped, "not run").unwrap_err();
    run.reopen(Idempotency::Natural);
    assert_eq!(run.session().calls().open_operations().len(), 1);
    let ran = run.counts().ran;
    assert!(run.runner.recover(&ExecuteOptions::default()).unwrap().is_empty());
    let last = run.invoked().pop().unwrap();
    assert_eq!((last.outcome, last.cause, run.counts().ran), (Outcome::Failed, Some(Cause::Skipped), ran));
    assert!(!run.session().calls().is_interrupted());
    let last = run.session().log().position().unwrap();
    let shown = |record: &foldlog::Record<'_>| {
        assert!(record.body.windows(7).any(|bytes| bytes == b"not run"));
        Ok(())
    };
    run.session().log().records(last, last, shown).unwrap();
}
