//! A model that continues from the state of its session.

use serde_json::{Value, json};

use crate::new_id;
use crate::steps::{Played, Player};

impl Player {
    /// Plays a step `model`: repeats the requested calls whose results the session lacks, then
    /// plays the missing answers, and the result.
    pub fn play_model(&mut self, answers: &[Value]) -> Played {
        let lacks = self.session.calls_without_result();
        let calls = answers.iter().filter_map(|answer| answer["calls"].as_array()).flatten();
        let again = calls.filter(|call| lacks.contains(&(self.named(call).0, call["input"].clone())));
        let again: Vec<Value> = again.cloned().collect();
        if !again.is_empty() {
            let id = format!("again_{}", new_id());
            self.give(&id, &json!({"text": "once more", "calls": again}))?;
        }
        // A conversation in a prompt's text may contain a repeated call without the answer that
        // first requested it.
        let prompts = self.session.prompts().join("\n");
        let in_words = |call: &Value| {
            prompts.contains(&format!("[calls {} with {}]", self.named(call).0, call["input"]))
        };
        let is_said = |answer: &Value| {
            answer["text"].as_str().is_some_and(|text| self.session.says(text))
                || answer["calls"].as_array().is_some_and(|calls| calls.iter().any(in_words))
        };
        let said = answers.iter().rposition(is_said).map_or(0, |last| last + 1);
        for number in said.. {
            self.started.note("asked", &number.to_string());
            let answer = answers.get(number).cloned().unwrap_or_else(|| json!({"text": "done"}));
            self.give(&format!("msg_{number}"), &answer)?;
            if answer["calls"].as_array().is_none_or(Vec::is_empty) {
                return self.step(&json!({"result": answer["text"]}));
            }
        }
        Ok(())
    }

    /// Sends an answer, and runs its calls.
    fn give(&mut self, id: &str, answer: &Value) -> Played {
        let mut blocks = vec![json!({"type": "text", "text": answer["text"]})];
        let mut asked = Vec::new();
        for call in answer["calls"].as_array().into_iter().flatten() {
            let (name, bridged) = self.named(call);
            let id = format!("toolu_{}", new_id());
            blocks.push(json!({"type": "tool_use", "id": id, "name": name, "input": call["input"]}));
            asked.push((call, name, bridged, id));
        }
        self.answer_as(id, &blocks);
        if answer["mirror"] == true {
            self.session.mirror();
        }
        for (call, name, bridged, id) in asked {
            self.run_call(call, &name, bridged, &mut call["input"].clone(), &id)?;
            if call["mirror"] == true {
                self.session.mirror();
            }
        }
        Ok(())
    }
}
