//! Conversations from a seed: a model's output, answer by answer.

use foldlog::Generator;
use foldlog::conversation::ToolCallRecord;
use serde_json::json;

/// The length of a large result, in bytes: more than fits into a record, so that it becomes an
/// object.
pub(super) const LARGE: u64 = 1 << 20;

/// A model's text, and the calls that it requests.
#[derive(Clone, Debug)]
pub(super) struct Answer {
    pub(super) text: Option<String>,
    pub(super) calls: Vec<ToolCallRecord>,
}

/// A whole conversation. Its last answer is the output that the prompt demands.
#[derive(Clone, Debug)]
pub(super) struct Generated {
    pub(super) answers: Vec<Answer>,
}

/// Tools that an answer may request; their frequency here is their weight. `fly` is no tool.
const TOOLS: [&str; 16] = [
    "look", "look", "look", "add", "add", "add", "break", "fly", "more", "delegate", "delegate", "blank",
    "fetch", "ask", "ask", "hand",
];

impl Generated {
    /// Creates a conversation of one to five answers with two to eight calls each, and an output
    /// that is refused up to twice. Ids of calls repeat, within an answer too. Every call has a
    /// unique effect, so that each can be counted.
    pub(super) fn from_seed(seed: u64) -> Generated {
        let mut draw = Generator::from_seed(seed);
        let mut pick = |bound| draw.next_below(bound) as usize;
        let mut answers = Vec::new();
        for turn in 0..=pick(4) {
            let mut calls = Vec::new();
            for ordinal in 0..2 + pick(7) {
                let name = TOOLS[pick(TOOLS.len() as u64)];
                let unusual = ["", "é\u{1f600}", "\u{0}\n\u{202e}"][pick(3)];
                let long = unusual.repeat(if pick(20) == 0 { 5_000 } else { 1 });
                let text = format!("{turn}.{ordinal}{long}");
                let arguments = match (pick(12), name) {
                    (0, _) => "{no JSON".to_owned(),
                    (1, _) => String::new(),
                    (2, _) => json!({ "another": "field" }).to_string(),
                    (_, "more") => json!({ "text": "details" }).to_string(),
                    (_, "fetch") => {
                        json!({ "text": text, "size": if pick(3) == 0 { LARGE } else { 9 } }).to_string()
                    }
                    _ => json!({ "text": text, "size": pick(3) }).to_string(),
                };
                let call_id = ["a", "b", "c"][pick(3)].to_owned();
                calls.push(ToolCallRecord { call_id, name: name.to_owned(), arguments });
            }
            let text = [None, Some(""), Some("é\u{1f600}"), Some("I work.")][pick(4)];
            answers.push(Answer { text: text.map(str::to_owned), calls });
        }
        let refused = [None, Some(""), Some(" "), Some("no JSON"), Some("{\"wrong\":1}")];
        for _ in 0..pick(3) {
            answers.push(Answer { text: refused[pick(5)].map(str::to_owned), calls: Vec::new() });
        }
        answers.push(Answer { text: Some("{\"finding\":\"done".to_owned()), calls: Vec::new() });
        Generated { answers }
    }
}
