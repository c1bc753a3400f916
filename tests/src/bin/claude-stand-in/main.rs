//! Plays the Claude Code program for tests: the control channel, the tool bridge, hooks, and a file for each session, as
//! the real one has them; what the model says stands in a script.
//!
//! The variable `STAND_IN_SCRIPT` names the script: one JSON object a line, a step each, played in order. Where a step has
//! several fields, the first named here says what it does.
//!
//! | step | what is played |
//! |---|---|
//! | `{"initialize":"never"}`, `"twice"`, `"refuse"`, `"skip"`, `"older"` | how `initialize` is answered: not at all, twice, with an error, later by the script (`skip`), or without a version, as before 2.1.248 (`older`). Only as the first step; without it, each bridged server is asked for `initialize` and then the host is answered |
//! | `{"turn":true}` | waits for a prompt, and begins a turn: `init`; before the first one, the servers are told and asked for their tools. With `"lacks":["Bash"]`, `init` names no such tool of the program; with `"version":"2.1.100"`, that version |
//! | `{"text":"..."}` | an answer of the model with a text |
//! | `{"tool":"search","input":{},"id":"t1"}` | an answer that calls a bridged tool, its hooks and permission, the call, and the result; `id` may be left out. With `"mirror":true`, the answer is mirrored before the call; with `"untold":true`, nobody is told of its end but the model; with `"die":9`, the program dies behind it |
//! | `{"native":"Write","input":{},"write":{"a.txt":"..."},"remove":["b"],"output":"ok"}` | the same for a tool of the program's own, which writes and removes files in the working directory, and leaves a program running (`leave`). It fails with `"fails":"text"`, saves `"saves":"text"` as an output that is too large for the model, which is told the file, and waits with `"gate":"name"`. `"steps":[..]` are played by the sub-agent that it begins |
//! | `{"together":[{"tool":..},..]}` | one answer that calls several bridged tools at once, without hooks |
//! | `{"model":[{"text":"..","calls":[..],"mirror":true},..]}` | plays the calls of them once more whose results the session lacks, and then the answers that the session, or its prompts in words, do not hold yet: those behind the last one whose text is there, each with its calls (steps `tool` or `native`, `"mirror":true` too), and the result behind one without calls. Each is noted before it is given |
//! | `{"result":"done",...}` | ends the turn; other fields are added to the message, or replace its own |
//! | `{"emit":{...}}` | writes a line |
//! | `{"raw":"text"}` | writes a text and a newline |
//! | `{"cut":"text","signal":9}` | writes a text without a newline, and dies |
//! | `{"large":30000000}` | an answer with a text of that length |
//! | `{"stderr":"text"}`, `{"stderr":"text","times":1000}` | writes to the standard error |
//! | `{"hear":{...}}` | waits for a control request of the host with these fields, at any depth; it is answered by the script |
//! | `{"reply":{...}}`, `{"reply_error":"text"}` | answers the request that was heard last |
//! | `{"ask":{...},"id":"r1","wait":false}` | sends a control request, and waits for its answer unless told otherwise |
//! | `{"answer":"r1"}` | waits for the answer to a request |
//! | `{"cancel":"r1"}` | no longer waits for a request, and says so |
//! | `{"unanswered":"r1"}` | dies with code 3 if the request was answered by now |
//! | `{"gate":"name"}`, `{"touch":"name"}` | waits for a file beside the script, or makes one |
//! | `{"write":{"a.txt":"..."},"remove":["b"]}` | writes and removes files in the working directory |
//! | `{"mirror":true}` | mirrors what was added to the session's file. Else that is mirrored at the end of each turn |
//! | `{"leave":["sleep","600"]}` | starts a program that holds the output |
//! | `{"exit":1}`, `{"die":9}` | ends, by a code or a signal |
//! | `{"hold":true}` | goes on for ever, whatever the host does |
//!
//! In texts, `$session` is the id of the session, `$cwd` the working directory, `$files` the names in it, `$prompt` the last
//! prompt, `$history` all prompts of the session, joined by `|`, and `$results` the results of its calls, `id: text` each,
//! joined alike. After the last step it waits for the end of its input, and exits with 0.
//!
//! `interrupt`, unless the script hears it, cancels what the host was asked for, ends the turn with an `aborted_` result,
//! and goes on at the next `turn`. `set_model`, `set_permission_mode` and `mcp_status` are answered; others are refused.
//!
//! With the variable `STAND_IN_COUNTS`, the ids that it makes are counted, and not drawn.
//!
//! | file | holds |
//! |---|---|
//! | `SCRIPT.heard` | the host's lines, as they came |
//! | `SCRIPT.starts` | for each start: `arguments`, `environment`, `cwd`, `pid` |
//! | `SCRIPT.asked` | numbers of the answers that the step `model` gave |
//! | `CONFIG/projects/CWD/SESSION.jsonl` | the session; `CONFIG` is `CLAUDE_CONFIG_DIR` or `HOME/.claude` |

mod calls;
mod host;
mod model;
mod session;
mod started;
mod steps;

use std::sync::atomic::{AtomicU64, Ordering};

use uuid::Uuid;

/// Makes a new id.
fn new_id() -> String {
    static MADE: AtomicU64 = AtomicU64::new(1);
    let made = MADE.fetch_add(1, Ordering::Relaxed);
    let is_counted = std::env::var_os("STAND_IN_COUNTS").is_some();
    if is_counted { Uuid::from_u128(u128::from(made)) } else { Uuid::new_v4() }.to_string()
}

fn main() {
    let started = started::Started::take();
    let session = match session::Transcript::open(&started) {
        Ok(session) => session,
        Err(refusal) => refusal.end(),
    };
    let host = host::Host::listen(&started);
    steps::Player::new(started, session, host).play();
}
