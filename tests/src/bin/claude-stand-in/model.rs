//! A model that knows how far its session has come.

use serde_json::{Value, json};

use crate::steps::{Played, Player};

impl Player {
    /// Plays a step `model`: the answers that the session does not hold yet, with their calls, and the result.
    pub fn play_model(&mut self, answers: &[Value]) -> Played {
        let prompts = self.session.prompts();
        let told = prompts.iter().flat_map(|prompt| prompt.lines());
        let told = told.filter(|line| line.starts_with("you: ")).count();
        let mut number = self.session.answers() + told;
        loop {
            self.started.note("asked", &number.to_string());
            let answer = answers.get(number).unwrap_or(&Value::Null);
            let calls = answer["calls"].as_array().map(Vec::as_slice).unwrap_or_default();
            let text = answer["text"].as_str().unwrap_or("done").to_owned();
            let mut blocks = vec![json!({"type": "text", "text": text})];
            let mut asked = Vec::new();
            for call in calls {
                let (name, bridged) = self.named(call);
                let id = format!("toolu_{}", uuid::Uuid::new_v4());
                blocks.push(json!({"type": "tool_use", "id": id, "name": name, "input": call["input"]}));
                asked.push((call, name, bridged, id));
            }
            self.answer_as(&format!("msg_{number}"), &blocks);
            if answer["mirror"] == true {
                self.session.mirror();
            }
            for (call, name, bridged, id) in asked {
                self.run_call(call, (&name, bridged), &mut call["input"].clone(), &id)?;
                if call["mirror"] == true {
                    self.session.mirror();
                }
            }
            if calls.is_empty() {
                return self.step(&json!({"result": text}));
            }
            number += 1;
        }
    }
}
