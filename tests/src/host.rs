//! The types of a host such as the tests need.

use foldlog::{Event, Policy, Result, SessionTypes, Slice, SliceOp, UpcastError, Value};
use serde::{Deserialize, Serialize};

/// A step of a plan.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq)]
pub struct StepAdded {
    /// What is to be done.
    pub title: String,
    /// Which part of the plan it is of.
    pub part: u8,
}

impl Event for StepAdded {
    const NAME: &'static str = "plan.step_added";
}

/// Something noted for good.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq)]
pub struct Noted {
    /// The note.
    pub text: String,
}

impl Event for Noted {
    const NAME: &'static str = "noted";
}

/// A request to change the draft at a place.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq)]
pub struct DraftEdited {
    /// Where; behind the end it appends.
    pub place: usize,
    /// The new line; an empty one takes the line out.
    pub line: String,
}

impl Event for DraftEdited {
    const NAME: &'static str = "draft.edited";
}

/// An event that no host declares.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq)]
pub struct Undeclared {
    /// Anything.
    pub value: i64,
}

impl Event for Undeclared {
    const NAME: &'static str = "undeclared";
}

/// STATE by `append_all`.
#[derive(Debug)]
pub struct Plan;

impl Slice for Plan {
    const NAME: &'static str = "plan";
    type Item = StepAdded;
}

/// STATE by `replace_latest`.
#[derive(Debug)]
pub struct CurrentStep;

impl Slice for CurrentStep {
    const NAME: &'static str = "current_step";
    type Item = StepAdded;
}

/// STATE by `upsert_by` part.
#[derive(Debug)]
pub struct StepOfPart;

impl Slice for StepOfPart {
    const NAME: &'static str = "step_of_part";
    type Item = StepAdded;
}

/// LOG by `append_all`.
#[derive(Debug)]
pub struct Notes;

impl Slice for Notes {
    const NAME: &'static str = "notes";
    type Item = Noted;
}

/// LOG by a reducer of the host's own: a running count, which needs the last item.
#[derive(Debug)]
pub struct NoteSizes;

impl Slice for NoteSizes {
    const NAME: &'static str = "note_sizes";
    type Item = (u64, u64);
    const ITEM_NAME: &'static str = "note_size";
}

/// CACHE by `append_all`.
#[derive(Debug)]
pub struct Preview;

impl Slice for Preview {
    const NAME: &'static str = "preview";
    type Item = StepAdded;
}

/// STATE by a reducer that replaces, extends and clears.
#[derive(Debug)]
pub struct Draft;

impl Slice for Draft {
    const NAME: &'static str = "draft";
    type Item = String;
    const ITEM_NAME: &'static str = "draft_line";
    const ITEM_VERSION: u32 = 2;

    fn upcast_item(version: u32, value: Value) -> Result<Value, UpcastError> {
        // Version 1 held maps with one field.
        match value.get("line") {
            Some(line) if version == 1 => Ok(line.clone()),
            _ => Err(UpcastError::new("a line of version 1 has a field `line`")),
        }
    }
}

/// The host's declaration.
///
/// # Panics
///
/// Never: the declarations agree.
pub fn types() -> SessionTypes {
    SessionTypes::builder()
        .slice::<Plan>()
        .append_all::<Plan>()
        .slice::<CurrentStep>()
        .replace_latest::<CurrentStep>()
        .slice::<StepOfPart>()
        .upsert_by::<StepOfPart, _>(|step| step.part)
        .slice_with::<Preview>(Policy::Cache)
        .append_all::<Preview>()
        .slice_with::<Notes>(Policy::Log)
        .append_all::<Notes>()
        .slice_with::<NoteSizes>(Policy::Log)
        .reducer::<NoteSizes, Noted>(|sizes, noted, _| {
            let before = sizes.latest().map_or(0, |(_, total)| *total);
            let len = noted.text.len() as u64;
            Ok(SliceOp::Append((len, before + len)))
        })
        .slice::<Draft>()
        .reducer::<Draft, DraftEdited>(|lines, edit, context| {
            let mut items: Vec<_> = lines.items().collect();
            match (items.get_mut(edit.place), edit.line.as_str()) {
                (None, "") => return Ok(SliceOp::Clear(foldlog::Clear::All)),
                (None, line) => return Ok(SliceOp::Append(line.to_owned())),
                (Some(_), "") => {
                    items.remove(edit.place);
                }
                // A line that asks for it gets a number that a replay must draw again.
                (Some(slot), "?") => *slot = context.generator().below(1000).to_string().into(),
                (Some(slot), line) => *slot = line.to_owned().into(),
            }
            Ok(SliceOp::Replace(items))
        })
        .build()
        .expect("the declarations agree")
}
