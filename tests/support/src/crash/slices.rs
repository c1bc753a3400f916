//! A naive model of the slices of [`crate::host`]: plain vectors.

use std::collections::BTreeMap;
use std::sync::Arc;

use foldlog::conversation::NewInput;
use foldlog::inspect::LogReader;
use foldlog::{Event as _, EventSlice, Result, SequenceNumber, Session, SnapshotOptions};

use super::{After, Chance};
use crate::host::{
    CurrentStep, Draft, DraftEdited, NoteSizes, Noted, Notes, Plan, Preview, StepAdded, StepOfPart,
    Undeclared, types,
};

/// The content of a session, as plain vectors.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Slices {
    plan: Vec<StepAdded>,
    current: Vec<StepAdded>,
    of_part: Vec<StepAdded>,
    draft: Vec<String>,
    undeclared: Vec<Undeclared>,
    preview: Vec<StepAdded>,
    notes: Vec<Noted>,
    sizes: Vec<(u64, u64)>,
    tags: BTreeMap<String, String>,
    /// The messages of a conversation, without those that were rolled back or sent within a failed
    /// call.
    said: Vec<String>,
}

fn all<T: Clone>(items: Vec<Arc<T>>) -> Vec<T> {
    items.iter().map(|item| T::clone(item)).collect()
}

/// The name of a session's only conversation.
const EVALUATION: &str = "simulated";

/// An action on a session that leaves a record.
#[derive(Clone, Debug)]
pub enum Change {
    Step(StepAdded),
    Note(Noted),
    Edit(DraftEdited),
    /// Dispatches an event that no host declares.
    Undeclared(Undeclared),
    SeedPlan(Vec<StepAdded>),
    ClearDraft,
    /// Clears the steps of one part.
    ClearPart(u8),
    /// Empties STATE and CACHE.
    Reset,
    Tag(String, String),
    Untag(String),
    /// Adds a message to the session's conversation.
    Say(String),
    Snapshot,
    TaggedSnapshot,
    /// Rolls back to a position, at which the slices were these.
    Rollback(u64, Box<Slices>),
}

impl Change {
    /// Draws a change; `past` contains the state after each record so far. Some texts are as long
    /// as `large`. A rollback goes back to a position with the same open calls.
    pub fn draw(chance: &mut Chance, past: &[After], large: u64) -> Change {
        let text = |chance: &mut Chance| {
            let most = if chance.percent(12) { large } else { 40 };
            let len = chance.below(most);
            chance.text(len)
        };
        let step = |chance: &mut Chance| StepAdded { title: text(chance), part: chance.below(4) as u8 };
        match chance.below(100) {
            0..=34 => Change::Step(step(chance)),
            35..=39 => Change::Say(text(chance)),
            40..=59 => Change::Note(Noted { text: text(chance) }),
            60..=71 => Change::Edit(DraftEdited {
                place: chance.below(6) as usize,
                // A lone question mark would draw from the engine's generator.
                line: if chance.percent(20) { String::new() } else { format!("{}.", text(chance)) },
            }),
            72..=75 => Change::Undeclared(Undeclared { value: chance.below(1000) as i64 }),
            76..=78 => Change::SeedPlan((0..chance.below(4)).map(|_| step(chance)).collect()),
            79..=80 => Change::ClearDraft,
            81..=82 => Change::ClearPart(chance.below(4) as u8),
            83 => Change::Reset,
            84..=86 => Change::Tag(chance.text(1), text(chance)),
            87 => Change::Untag(chance.text(1)),
            88..=91 => Change::Snapshot,
            92..=93 => Change::TaggedSnapshot,
            _ => {
                let begins = |after: &After| after.begins();
                let now = past.last().map(begins).unwrap_or_default();
                let to: Vec<usize> = (0..past.len()).filter(|at| begins(&past[*at]) == now).collect();
                let to = *chance.pick(&to);
                Change::Rollback(to as u64, Box::new((*past[to].slices).clone()))
            }
        }
    }

    /// Draws an edit that replaces an earlier one, whose body is then worth dropping.
    pub fn draw_edit(chance: &mut Chance) -> Change {
        let len = 80 + chance.below(300);
        Change::Edit(DraftEdited { place: chance.below(3) as usize, line: format!("{}.", chance.text(len)) })
    }

    /// Performs the change on a session, and returns the record's sequence number.
    pub fn perform(&self, session: &Session) -> Result<SequenceNumber> {
        match self.clone() {
            Change::Step(step) => session.dispatch(step),
            Change::Note(note) => session.dispatch(note),
            Change::Edit(edit) => session.dispatch(edit),
            Change::Undeclared(event) => session.dispatch(event),
            Change::SeedPlan(items) => session.seed::<Plan>(items),
            Change::ClearDraft => session.clear::<Draft>(),
            Change::ClearPart(part) => session.clear_where::<StepOfPart>(move |step| step.part == part),
            Change::Reset => session.reset(),
            Change::Tag(key, value) => session.set_tag(key, value),
            Change::Untag(key) => session.remove_tag(key),
            Change::Say(text) => session.conversation().record_input(&NewInput::user(EVALUATION, text)),
            Change::Snapshot => session.snapshot(SnapshotOptions::default()).map(|taken| taken.position),
            Change::TaggedSnapshot => {
                session.snapshot(SnapshotOptions::with_tag("kept")).map(|taken| taken.position)
            }
            Change::Rollback(to, _) => session.rollback_to(to).map(|done| done.sequence),
        }
    }

    /// Whether it is durable at its return at the durability `Boundary`.
    pub fn is_boundary(&self) -> bool {
        matches!(self, Change::Snapshot | Change::TaggedSnapshot | Change::Say(_) | Change::Rollback(..))
    }
}

impl Slices {
    /// Returns the slices of a session that was created with these tags.
    pub fn tagged(tags: BTreeMap<String, String>) -> Slices {
        Slices { tags, ..Slices::default() }
    }

    /// Returns the slices as a session shows them.
    pub fn of(session: &Session) -> Result<Slices> {
        let mut slices = Slices {
            plan: session.view::<Plan>()?.iter().cloned().collect(),
            current: session.view::<CurrentStep>()?.iter().cloned().collect(),
            of_part: session.view::<StepOfPart>()?.iter().cloned().collect(),
            draft: session.view::<Draft>()?.iter().cloned().collect(),
            undeclared: session.view::<EventSlice<Undeclared>>()?.iter().cloned().collect(),
            preview: session.view::<Preview>()?.iter().cloned().collect(),
            tags: session.tags(),
            ..Slices::default()
        };
        for note in session.log().slice::<Notes>()?.iter() {
            slices.notes.push((*note?).clone());
        }
        for size in session.log().slice::<NoteSizes>()?.iter() {
            slices.sizes.push(*size?);
        }
        if let Some(conversation) = session.conversation().read(EVALUATION)? {
            slices.said = conversation.messages().into_iter().filter_map(|message| message.content).collect();
        }
        Ok(slices)
    }

    /// Returns the slices as an auditor shows them at a position. Tags and messages are those of
    /// the end of the log.
    pub fn at(audit: &LogReader, position: u64) -> Result<Slices> {
        let (state, types) = (audit.state_at(position)?, types());
        let undeclared = state.slices.get(Undeclared::NAME).into_iter().flat_map(|slice| &slice.items);
        let undeclared =
            undeclared.map(|item| rmp_serde::from_slice(&item.bytes).expect("a number")).collect();
        Ok(Slices {
            plan: all(state.items::<Plan>(&types)?),
            current: all(state.items::<CurrentStep>(&types)?),
            of_part: all(state.items::<StepOfPart>(&types)?),
            draft: all(state.items::<Draft>(&types)?),
            undeclared,
            preview: all(state.items::<Preview>(&types)?),
            notes: all(state.items::<Notes>(&types)?),
            sizes: all(state.items::<NoteSizes>(&types)?),
            ..Slices::default()
        })
    }

    /// Returns the slices without the parts that [`Slices::at`] does not show.
    #[must_use]
    pub fn in_an_audit(&self) -> Slices {
        Slices { tags: BTreeMap::new(), said: Vec::new(), ..self.clone() }
    }

    #[must_use]
    pub fn after(&self, change: &Change) -> Slices {
        let mut next = self.clone();
        match change {
            Change::Step(step) => {
                next.plan.push(step.clone());
                next.current = vec![step.clone()];
                next.of_part.retain(|other| other.part != step.part);
                next.of_part.push(step.clone());
                next.preview.push(step.clone());
            }
            Change::Note(note) => {
                let total = next.sizes.last().map_or(0, |(_, total)| *total);
                let len = note.text.len() as u64;
                next.sizes.push((len, total + len));
                next.notes.push(note.clone());
            }
            Change::Edit(edit) => match (edit.place < next.draft.len(), edit.line.is_empty()) {
                (false, true) => next.draft.clear(),
                (false, false) => next.draft.push(edit.line.clone()),
                (true, true) => drop(next.draft.remove(edit.place)),
                (true, false) => next.draft[edit.place] = edit.line.clone(),
            },
            Change::Undeclared(event) => next.undeclared.push(event.clone()),
            Change::SeedPlan(items) => next.plan = items.clone(),
            Change::ClearDraft => next.draft.clear(),
            Change::ClearPart(part) => next.of_part.retain(|step| step.part != *part),
            Change::Reset => {
                let Slices { notes, sizes, tags, said, .. } = next;
                next = Slices { notes, sizes, tags, said, ..Slices::default() };
            }
            Change::Tag(key, value) => {
                next.tags.insert(key.clone(), value.clone());
            }
            Change::Untag(key) => {
                next.tags.remove(key);
            }
            Change::Snapshot | Change::TaggedSnapshot => {}
            Change::Say(text) => next.said.push(text.clone()),
            Change::Rollback(_, then) => next = Slices { said: then.said.clone(), ..next.back_to(then) },
        }
        next
    }

    /// Returns the slices after a rollback of STATE.
    #[must_use]
    pub fn back_to(&self, then: &Slices) -> Slices {
        let Slices { notes, sizes, tags, said, .. } = self.clone();
        Slices { notes, sizes, tags, said, preview: Vec::new(), ..then.clone() }
    }

    /// Returns the slices after the failure of a call that started at `then`: its messages no
    /// longer count.
    #[must_use]
    pub fn without_call(&self, then: &Slices) -> Slices {
        Slices { said: then.said.clone(), ..self.back_to(then) }
    }

    /// Returns the slices of a session that was created from an export of this one, without CACHE
    /// and conversations.
    #[must_use]
    pub fn imported(&self) -> Slices {
        Slices { preview: Vec::new(), said: Vec::new(), ..self.clone() }
    }

    /// Returns the slices of a fork that sets its own tag.
    #[must_use]
    pub fn with_tag(&self, key: &str, value: &str) -> Slices {
        let mut next = self.clone();
        next.tags.insert(key.to_owned(), value.to_owned());
        next
    }
}
