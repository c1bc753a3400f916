//! A naive model of a session: plain vectors, and no code of the engine.
//!
//! The model itself implements the [host's](crate::host) reducers, policies, rollbacks, and the
//! records of each call. The engine shares items between positions; the model copies every slice at
//! every position. The engine folds; the model remembers.

use std::collections::{BTreeMap, BTreeSet};

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use serde_json::{Value, json};

use crate::host::{Noted, StepAdded};

/// A change that a test may make to a session's slices and tags.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// `StepAdded`, which changes four slices.
    Step(StepAdded),
    /// `Noted`, which two LOG slices accept.
    Note(String),
    /// `DraftEdited`: place and line.
    Edit(usize, String),
    /// `LinesPasted`.
    Paste(Vec<String>),
    /// `DraftTurned`.
    Turn(usize),
    /// `LinesStruck`.
    Strike(String),
    /// `Doubted`: refused if false.
    Doubt(bool),
    /// An event that the host never declared.
    Undeclared(i64),
    /// A seed of `plan`, STATE.
    SeedPlan(Vec<StepAdded>),
    /// A seed of `draft`, STATE.
    SeedDraft(Vec<String>),
    /// A seed of `preview`, CACHE.
    SeedPreview(Vec<StepAdded>),
    /// A seed of `notes`, LOG: refused if it has items.
    SeedNotes(Vec<Noted>),
    /// A clear of a slice: refused for LOG.
    Clear(Cleared),
    /// A clear of the steps of one part from `plan`.
    ClearPart(u8),
    Reset,
    /// A tag that is set or removed.
    Tag(String, Option<String>),
}

/// A slice that a test clears.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cleared {
    /// STATE.
    Plan,
    /// STATE by key.
    StepOfPart,
    /// STATE of a custom reducer.
    Draft,
    /// CACHE.
    Preview,
    /// LOG, so refused.
    Notes,
    /// The slice of an event that the host never declared: refused before that event is first used.
    Undeclared,
}

impl Cleared {
    fn name(self) -> &'static str {
        match self {
            Cleared::Plan => "plan",
            Cleared::StepOfPart => "step_of_part",
            Cleared::Draft => "draft",
            Cleared::Preview => "preview",
            Cleared::Notes => "notes",
            Cleared::Undeclared => "undeclared",
        }
    }
}

pub type Items = (&'static str, Vec<Value>);

pub type Slices = BTreeMap<String, Items>;

/// The state after a record.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Moment {
    /// The slices, including empty ones.
    pub slices: Slices,
    pub tags: BTreeMap<String, String>,
    pub live: BTreeSet<u64>,
    /// The declared events of the log.
    events: BTreeSet<&'static str>,
}

impl Moment {
    /// Returns the STATE slices that have items.
    pub fn state(&self) -> Slices {
        let full = |(_, (policy, items)): &(&String, &Items)| *policy == "state" && !items.is_empty();
        self.slices.iter().filter(full).map(|(name, items)| (name.clone(), items.clone())).collect()
    }
}

/// The expected state of a session.
#[derive(Clone, Debug)]
pub struct Model {
    seed: u64,
    now: Moment,
    pub past: Vec<Moment>,
    pub kinds: Vec<&'static str>,
}

fn policy(slice: &str) -> &'static str {
    match slice {
        "preview" => "cache",
        "notes" | "note_sizes" | "good_ones" => "log",
        _ => "state",
    }
}

fn step(step: &StepAdded) -> Value {
    json!({"title": step.title, "part": step.part})
}

impl Model {
    /// Creates the model of a new session.
    pub fn new(seed: u64, tags: BTreeMap<String, String>) -> Model {
        let mut model = Model { seed, now: Moment::default(), past: Vec::new(), kinds: Vec::new() };
        model.now.tags = tags;
        model.write("opened");
        model
    }

    /// Returns the present slices and tags.
    pub fn now(&self) -> &Moment {
        &self.now
    }

    pub fn position(&self) -> u64 {
        self.past.len() as u64 - 1
    }

    fn write(&mut self, kind: &'static str) -> u64 {
        let sequence = self.past.len() as u64;
        self.now.live.insert(sequence);
        self.past.push(self.now.clone());
        self.kinds.push(kind);
        sequence
    }

    fn items(&mut self, slice: &str) -> &mut Vec<Value> {
        &mut self.now.slices.get_mut(slice).expect("it was declared").1
    }

    fn declare(&mut self, event: Option<&'static str>, slices: &[&str]) {
        let new_event = event.is_some_and(|event| !self.now.events.contains(event));
        let new_slice = slices.iter().any(|slice| !self.now.slices.contains_key(*slice));
        if !new_event && !new_slice {
            return;
        }
        self.now.events.extend(event);
        for slice in slices {
            self.now.slices.entry((*slice).to_owned()).or_insert((policy(slice), Vec::new()));
        }
        self.write("declare");
    }

    /// Makes a change and returns the record's position, or refuses the change and does nothing.
    pub fn change(&mut self, change: &Change) -> Option<u64> {
        match change {
            Change::Doubt(false) => return None,
            Change::Clear(Cleared::Notes) => return None,
            Change::Clear(Cleared::Undeclared) if !self.now.slices.contains_key("undeclared") => return None,
            Change::SeedNotes(_) if self.now.slices.get("notes").is_some_and(|(_, n)| !n.is_empty()) => {
                return None;
            }
            Change::Tag(key, value) => self.tag(key, value.as_ref()),
            Change::Reset => {
                let goes = self.now.slices.values_mut().filter(|(policy, _)| *policy != "log");
                goes.for_each(|(_, items)| items.clear());
            }
            Change::Clear(cleared) => {
                self.declare(None, &[cleared.name()]);
                self.items(cleared.name()).clear();
            }
            Change::ClearPart(part) => {
                self.declare(None, &["plan"]);
                self.items("plan").retain(|step| step["part"] != json!(part));
            }
            Change::SeedPlan(items) => self.seed("plan", items.iter().map(step)),
            Change::SeedPreview(items) => self.seed("preview", items.iter().map(step)),
            Change::SeedDraft(lines) => self.seed("draft", lines.iter().map(|line| json!(line))),
            Change::SeedNotes(notes) => {
                self.seed("notes", notes.iter().map(|note| json!({"text": note.text})));
            }
            event => self.event(event),
        }
        Some(self.write("dispatch"))
    }

    fn tag(&mut self, key: &str, value: Option<&String>) {
        match value {
            Some(value) => self.now.tags.insert(key.to_owned(), value.clone()),
            None => self.now.tags.remove(key),
        };
    }

    fn seed(&mut self, slice: &'static str, items: impl Iterator<Item = Value>) {
        self.declare(None, &[slice]);
        *self.items(slice) = items.collect();
    }

    fn event(&mut self, change: &Change) {
        match change {
            Change::Step(added) => {
                let slices = ["plan", "current_step", "step_of_part", "preview"];
                self.declare(Some("plan.step_added"), &slices);
                self.items("plan").push(step(added));
                *self.items("current_step") = vec![step(added)];
                self.items("step_of_part").retain(|step| step["part"] != json!(added.part));
                self.items("step_of_part").push(step(added));
                self.items("preview").push(step(added));
            }
            Change::Note(text) => {
                self.declare(Some("noted"), &["notes", "note_sizes"]);
                self.items("notes").push(json!({"text": text}));
                let before = self.items("note_sizes").last().map_or(0, |size| size[1].as_u64().unwrap());
                self.items("note_sizes").push(json!([text.len(), before + text.len() as u64]));
            }
            Change::Edit(place, line) => {
                self.declare(Some("draft.edited"), &["draft"]);
                let number = self.draw().to_string();
                let lines = self.items("draft");
                match (*place < lines.len(), line.as_str()) {
                    (false, "") => lines.clear(),
                    (false, line) => lines.push(json!(line)),
                    (true, "") => drop(lines.remove(*place)),
                    (true, "?") => lines[*place] = json!(number),
                    (true, line) => lines[*place] = json!(line),
                }
            }
            Change::Paste(pasted) => {
                self.declare(Some("draft.lines_pasted"), &["draft"]);
                self.items("draft").extend(pasted.iter().map(|line| json!(line)));
            }
            Change::Turn(by) => {
                self.declare(Some("draft.turned"), &["draft"]);
                for _ in 0..(*by).min(self.items("draft").len()) {
                    let first = self.items("draft").remove(0);
                    self.items("draft").push(first);
                }
            }
            Change::Strike(holding) => {
                self.declare(Some("draft.lines_struck"), &["draft"]);
                self.items("draft").retain(|line| !line.as_str().unwrap().contains(holding));
            }
            Change::Doubt(good) => {
                self.declare(Some("doubted"), &["doubts", "good_ones"]);
                self.items("doubts").push(json!({"good": good}));
                let len = self.items("good_ones").len();
                self.items("good_ones").push(json!(len));
            }
            Change::Undeclared(value) => {
                self.declare(Some("undeclared"), &["undeclared"]);
                self.items("undeclared").push(json!({"value": value}));
            }
            other => unreachable!("{other:?} is no event"),
        }
    }

    /// Returns the number below 1000 that a reducer draws at the next record: from the seed of the
    /// session that first writes the record, on the stream of the record's position.
    fn draw(&self) -> u64 {
        let mut rng = ChaCha8Rng::seed_from_u64(self.seed);
        rng.set_stream(self.past.len() as u64 + 1);
        ((u128::from(rng.next_u64()) * 1000) >> 64) as u64
    }

    /// Records an observation, which changes no slice, and returns its position.
    pub fn observe(&mut self) -> u64 {
        self.write("observed")
    }

    /// Records that the session is replicated, which changes no slice, and returns its position.
    pub fn replicate(&mut self) -> u64 {
        self.write("replicated")
    }

    pub fn snapshot(&mut self) -> u64 {
        self.write("snapshot")
    }

    /// Rolls back: restores STATE and empties CACHE. Returns the rollback's position, and the
    /// records that it abandons.
    pub fn roll_back(&mut self, to: u64) -> (u64, BTreeSet<u64>) {
        self.go_back(to, true)
    }

    /// Rolls back LOG too, which only tests can do.
    pub fn roll_back_logs_too(&mut self, to: u64) -> (u64, BTreeSet<u64>) {
        self.go_back(to, false)
    }

    fn go_back(&mut self, to: u64, preserve_logs: bool) -> (u64, BTreeSet<u64>) {
        let then = self.past[to as usize].clone();
        for (name, (policy, items)) in &mut self.now.slices {
            match *policy {
                "log" if preserve_logs => {}
                "state" | "log" => {
                    *items = then.slices.get(name).map(|(_, items)| items.clone()).unwrap_or_default()
                }
                "cache" => items.clear(),
                _ => {}
            }
        }
        let abandoned = self.now.live.difference(&then.live).copied().collect();
        self.now.live = then.live;
        (self.write("rollback"), abandoned)
    }

    /// Creates a fork, which is equal up to a position and then continues with its own seed.
    pub fn fork(&self, at: u64, seed: u64, tags: &BTreeMap<String, String>) -> Model {
        let shared = at as usize + 1;
        let (past, kinds) = (self.past[..shared].to_vec(), self.kinds[..shared].to_vec());
        let mut fork = Model { seed, now: past[at as usize].clone(), past, kinds };
        fork.now.tags.extend(tags.clone());
        fork.write("opened");
        fork
    }

    /// Creates a session that starts with an export of this one: its tags, and all slices except
    /// CACHE and empty ones.
    pub fn import(&self, seed: u64, tags: &BTreeMap<String, String>) -> Model {
        let mut import = Model::new(seed, tags.clone());
        let kept = |(_, (policy, items)): &(&String, &Items)| *policy != "cache" && !items.is_empty();
        let slices: Slices =
            self.now.slices.iter().filter(kept).map(|(n, i)| (n.clone(), i.clone())).collect();
        for (name, (policy, _)) in &slices {
            import.now.slices.insert(name.clone(), (policy, Vec::new()));
        }
        import.write("declare");
        import.now.slices = slices;
        for (key, value) in &self.now.tags {
            // The import's own tags take precedence over those of the export.
            import.now.tags.entry(key.clone()).or_insert_with(|| value.clone());
        }
        import.write("import");
        import
    }
}
