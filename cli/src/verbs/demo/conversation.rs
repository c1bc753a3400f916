//! The demo's conversation: a scripted model, the process that is killed within one of its calls,
//! and the process that continues.

use foldlog::conversation::{ResumePoint, Role};
use foldlog::tools::ToolRunner;
use foldlog::{Outcome, ToolInvocations};
use foldlog_agent::provider::scripted::{ScriptedProvider, ScriptedReply, ScriptedRequest};
use foldlog_agent::provider::{ProviderAnswer, ProviderErrorKind};
use foldlog_agent::{
    Error, EvaluateOptions, MarkdownSection, Prompt, PromptResponse, ProviderAdapter, UserMessage,
};
use foldlog_codec::escape;

use super::tools::{self, Edit, EditEnding};
use super::{broken, heading, say};
use crate::failure::{CommandError, Result};
use crate::output::Output;

/// Text before the number of each requested answer in the child's output.
pub(super) const ASKED: &str = "asked ";

pub(super) const EVALUATION: &str = "write-the-fix";

/// Result of resuming a conversation.
#[derive(Clone, Copy, Debug)]
pub(super) struct Resumed {
    /// Number of answers of the whole conversation.
    pub(super) answers: u64,
    /// Number of requests of the process that resumed it.
    pub(super) requests: u64,
}

fn prompt() -> Prompt {
    let task = MarkdownSection::new("task", "You write fixes. Read before you edit.");
    Prompt::text("demo", "fix").with_section(task).with_tools(tools::registry())
}

/// Replies as a model would. The reply depends only on the conversation, so every process has the
/// same model.
fn reply(request: &ScriptedRequest) -> ScriptedReply {
    let answers = request.messages.iter().filter(|message| message.role == Role::Assistant).count();
    let edit =
        |edit: Edit| ("edit", tools::EDIT_FILES.to_owned(), serde_json::to_string(&edit).unwrap_or_default());
    let read = |id, path: &str| (id, tools::READ_FILE.to_owned(), format!(r#"{{"path": "{path}"}}"#));
    let step = "write the fix";
    let (text, calls) = match answers {
        0 => {
            let half = Edit::new(step, EditEnding::WaitForTheEnd)
                .write("src/zones.txt", "half of the fi")
                .rename("notes.txt", "moved.txt")
                .delete("README.txt");
            let calls = vec![read("notes", "notes.txt"), edit(half), read("readme", "README.txt")];
            ("I read the notes, edit, and look at the readme.", calls)
        }
        1 => {
            let whole =
                Edit::new(step, EditEnding::Succeed).write("src/zones.txt", "each zone has its offset");
            ("The edit came to nothing. A smaller one.", vec![edit(whole)])
        }
        2 => return ScriptedReply::text("The zones have their offsets."),
        _ => {
            return ScriptedReply::fail(ProviderErrorKind::BadRequest, "the demo's model has no more to say");
        }
    };
    let calls: Vec<_> = calls.iter().map(|(id, name, json)| (*id, name.as_str(), json.as_str())).collect();
    match ScriptedReply::calls(calls) {
        ScriptedReply::Answer(answer) => {
            ScriptedReply::Answer(ProviderAnswer { content: Some(text.to_owned()), ..answer })
        }
        failure => failure,
    }
}

fn evaluate(
    runner: &ToolRunner,
    adapter: &ProviderAdapter<ScriptedProvider>,
) -> Result<PromptResponse<String>> {
    let task = UserMessage { id: "task".to_owned(), text: "Times are wrong outside of UTC.".to_owned() };
    let options = EvaluateOptions {
        evaluation_id: Some(EVALUATION.to_owned()),
        messages: vec![task],
        ..EvaluateOptions::default()
    };
    adapter.evaluate(&prompt(), runner.state(), options).map_err(|error| match error {
        Error::Engine(error) => CommandError::View(foldlog_view::Error::Engine(error)),
        error => broken(format!("the conversation ended early: {error}")),
    })
}

/// Starts the conversation, in the process that is killed within a call of the first answer. Prints
/// each request for an answer for the parent.
pub(super) fn begin(runner: &ToolRunner) -> Result<()> {
    let provider = ScriptedProvider::from_fn(|request| {
        println!("{ASKED}{}", request.number);
        reply(request)
    });
    evaluate(runner, &ProviderAdapter::new(provider)).map(drop)
}

/// Resumes the conversation of the process that was killed, which had requested `asked` answers.
///
/// # Errors
///
/// [`Error::DoesNotHold`](foldlog_view::Error::DoesNotHold) if an answer was requested twice, or a
/// call ran twice.
pub(super) fn resume(runner: &ToolRunner, asked: u64, output: &mut Output<'_>) -> Result<Resumed> {
    let session = runner.state().session();
    let reads = || -> Result<usize> {
        let mut reads = 0;
        for call in session.log().slice::<ToolInvocations>()?.iter() {
            let call = call?;
            reads += usize::from(call.tool == tools::READ_FILE && call.outcome == Outcome::Committed);
        }
        Ok(reads)
    };
    heading(output, "4. The conversation continues where it stopped.")?;
    say(
        output,
        "   Of the three calls the first had committed, and the second is settled: only the third runs.",
    )?;
    let (point, before) = (session.conversation().resume(Some(EVALUATION))?.point, reads()?);
    if point != ResumePoint::RunTools(vec![2]) || before != 1 {
        return Err(broken(format!("the conversation does not go on at its third call: {point:?}")));
    }
    let adapter = ProviderAdapter::new(ScriptedProvider::from_fn(reply));
    let response = evaluate(runner, &adapter)?;
    let messages = session.conversation().read(EVALUATION)?.map_or_else(Vec::new, |held| held.messages());
    let answers = messages.iter().filter(|message| message.role == Role::Assistant).count() as u64;
    let requests = adapter.provider().requests();
    say(
        output,
        format_args!(
            "   answers: {answers}; {asked} was requested by the killed process, {requests} by this one"
        ),
    )?;
    say(output, format_args!("   the last answer: {}", escape::text(&response.text)))?;
    say(output, format_args!("   files: {}", tools::list_files(runner)?.join(", ")))?;
    if asked + requests != answers || reads()? != before + 1 {
        return Err(broken("an answer was asked for twice, or a call of it ran twice"));
    }
    Ok(Resumed { answers, requests })
}
