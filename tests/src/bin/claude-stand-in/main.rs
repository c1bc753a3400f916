//! Plays the Claude Code program for tests: the control channel, the tool bridge, hooks, and a file
//! for each session, like the real program. A script contains the model's output.
//!
//! The variable `STAND_IN_SCRIPT` names the script: one JSON object per line, each a step, played
//! in order. If a step has several fields, the first one listed here selects the action.
//!
//! | step | action |
//! |---|---|
//! | `{"initialize":"never"}`, `"twice"`, `"refuse"`, `"skip"`, `"older"` | how `initialize` is answered: not at all, twice, with an error, later by the script (`skip`), or without a version, as before 2.1.248 (`older`). Only as the first step; without it, each bridged server is asked for `initialize` and then the host is answered |
//! | `{"turn":true}` | waits for a prompt, and starts a turn: `init`; before the first turn, the servers are notified and asked for their tools. With `"lacks":["Bash"]`, `init` omits that tool of the program; with `"version":"2.1.100"`, it has that version |
//! | `{"text":"..."}` | an answer of the model with a text |
//! | `{"tool":"search","input":{},"id":"t1"}` | an answer that calls a bridged tool, its hooks and permission, the call, and the result; `id` is optional. With `"mirror":true`, the answer is mirrored before the call; with `"untold":true`, only the model learns of its end; with `"die":9`, the program dies after it |
//! | `{"native":"Write","input":{},"write":{"a.txt":"..."},"remove":["b"],"output":"ok"}` | the same for a tool of the program's own, which writes and removes files in the working directory, and leaves a program running (`leave`). It fails with `"fails":"text"`, saves `"saves":"text"` as an output too large for the model, which receives the file's path, and waits with `"gate":"name"`. The sub-agent that it starts plays `"steps":[..]` |
//! | `{"together":[{"tool":..},..]}` | one answer that calls several bridged tools at once, without hooks |
//! | `{"model":[{"text":"..","calls":[..],"mirror":true},..]}` | repeats the calls whose results the session lacks. Then plays the answers that neither the session nor its prompts contain: those after the last one whose text is there, each with its calls (steps `tool` or `native`, `"mirror":true` too), and the result after an answer without calls. Each answer is recorded before it is sent |
//! | `{"result":"done",...}` | ends the turn; other fields are added to the message, or replace its own |
//! | `{"emit":{...}}` | writes a line |
//! | `{"raw":"text"}` | writes a text and a newline |
//! | `{"cut":"text","signal":9}` | writes a text without a newline, and dies |
//! | `{"large":30000000}` | an answer with a text of that length |
//! | `{"stderr":"text"}`, `{"stderr":"text","times":1000}` | writes to the standard error |
//! | `{"hear":{...}}` | waits for a control request of the host with these fields, at any depth; the script answers it |
//! | `{"reply":{...}}`, `{"reply_error":"text"}` | answers the last request for which `hear` waited |
//! | `{"ask":{...},"id":"r1","wait":false}` | sends a control request, and waits for its answer unless `wait` is false |
//! | `{"answer":"r1"}` | waits for the answer to a request |
//! | `{"cancel":"r1"}` | cancels a request and reports that |
//! | `{"unanswered":"r1"}` | dies with code 3 if the request has been answered |
//! | `{"gate":"name"}`, `{"touch":"name"}` | waits for a file next to the script, or creates one |
//! | `{"write":{"a.txt":"..."},"remove":["b"]}` | writes and removes files in the working directory |
//! | `{"mirror":true}` | mirrors the new lines of the session's file. Otherwise they are mirrored at the end of each turn |
//! | `{"leave":["sleep","600"]}` | starts a program that holds the output |
//! | `{"exit":1}`, `{"die":9}` | ends, by a code or a signal |
//! | `{"hold":true}` | continues forever, whatever the host does |
//!
//! In texts, `$session` is the id of the session, `$cwd` the working directory, `$files` the names
//! in it, `$prompt` the last prompt, `$history` all prompts of the session, joined by `|`, and
//! `$results` the results of its calls, `id: text` each, joined in the same way. After the last
//! step it waits for the end of its input, and exits with 0.
//!
//! Unless the script handles it, `interrupt` cancels the requests to the host, ends the turn with
//! an `aborted_` result, and continues at the next `turn`. `set_model`, `set_permission_mode` and
//! `mcp_status` are answered; others are refused.
//!
//! With the variable `STAND_IN_COUNTS`, new ids are counted instead of drawn.
//!
//! | file | content |
//! |---|---|
//! | `SCRIPT.heard` | the host's lines in order of arrival |
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
