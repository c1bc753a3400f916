//! The host of the tests: its events, slices and declarations.

use foldlog::inspect::{LogReader, ReplayReducers};
use foldlog::{
    Clear, Event, Item, Policy, Result, SessionTypes, SessionTypesBuilder, Slice, SliceOp, UpcastError, Value,
};
use serde::{Deserialize, Serialize};

/// A step was added to the plan.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq)]
pub struct StepAdded {
    pub title: String,
    /// The part of the plan that the step belongs to.
    pub part: u8,
}

impl Event for StepAdded {
    const NAME: &'static str = "plan.step_added";
}

#[derive(Serialize, Deserialize, Debug, Clone, PartialEq)]
pub struct Noted {
    pub text: String,
}

impl Event for Noted {
    const NAME: &'static str = "noted";
}

/// Changes the draft at a place.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq)]
pub struct DraftEdited {
    /// The index of the line; an index beyond the end appends the line.
    pub place: usize,
    /// The new line; an empty one removes the line.
    pub line: String,
}

impl Event for DraftEdited {
    const NAME: &'static str = "draft.edited";
}

/// Appends lines to the draft, all at once.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq)]
pub struct LinesPasted {
    /// The lines; an empty list changes nothing.
    pub lines: Vec<String>,
}

impl Event for LinesPasted {
    const NAME: &'static str = "draft.lines_pasted";
}

/// Moves the draft's first lines to its end, in their order.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq)]
pub struct DraftTurned {
    pub by: usize,
}

impl Event for DraftTurned {
    const NAME: &'static str = "draft.turned";
}

/// Removes all lines of the draft that contain a text.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq)]
pub struct LinesStruck {
    pub holding: String,
}

impl Event for LinesStruck {
    const NAME: &'static str = "draft.lines_struck";
}

/// An event that its first reducer accepts, and its second one refuses if `good` is false.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq)]
pub struct Doubted {
    /// Whether the second reducer accepts the event too.
    pub good: bool,
}

impl Event for Doubted {
    const NAME: &'static str = "doubted";
}

/// An event that no host declares.
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq)]
pub struct Undeclared {
    pub value: i64,
}

impl Event for Undeclared {
    const NAME: &'static str = "undeclared";
}

/// STATE, folded by `append_all`.
#[derive(Debug)]
pub struct Plan;

impl Slice for Plan {
    const NAME: &'static str = "plan";
    type Item = StepAdded;
}

/// STATE, folded by `replace_latest`.
#[derive(Debug)]
pub struct CurrentStep;

impl Slice for CurrentStep {
    const NAME: &'static str = "current_step";
    type Item = StepAdded;
}

/// STATE, folded by `upsert_by` over parts.
#[derive(Debug)]
pub struct StepOfPart;

impl Slice for StepOfPart {
    const NAME: &'static str = "step_of_part";
    type Item = StepAdded;
}

/// LOG, folded by `append_all`.
#[derive(Debug)]
pub struct Notes;

impl Slice for Notes {
    const NAME: &'static str = "notes";
    type Item = Noted;
}

/// LOG, folded by a reducer of the host: a running count, which needs the last item.
#[derive(Debug)]
pub struct NoteSizes;

impl Slice for NoteSizes {
    const NAME: &'static str = "note_sizes";
    type Item = (u64, u64);
    const ITEM_NAME: &'static str = "note_size";
}

/// CACHE, folded by `append_all`.
#[derive(Debug)]
pub struct Preview;

impl Slice for Preview {
    const NAME: &'static str = "preview";
    type Item = StepAdded;
}

/// STATE, folded by a reducer that replaces, extends and clears.
#[derive(Debug)]
pub struct Draft;

impl Slice for Draft {
    const NAME: &'static str = "draft";
    type Item = String;
    const ITEM_NAME: &'static str = "draft_line";
    const ITEM_VERSION: u32 = 2;

    fn upcast_item(version: u32, value: Value) -> Result<Value, UpcastError> {
        // Items of version 1 are maps with one field.
        match value.get("line") {
            Some(line) if version == 1 => Ok(line.clone()),
            _ => Err(UpcastError::new("a line of version 1 has a field `line`")),
        }
    }
}

/// STATE, which accepts every doubt.
#[derive(Debug)]
pub struct Doubts;

impl Slice for Doubts {
    const NAME: &'static str = "doubts";
    type Item = Doubted;
}

/// LOG, folded by a reducer that refuses doubts that are not good.
#[derive(Debug)]
pub struct GoodOnes;

impl Slice for GoodOnes {
    const NAME: &'static str = "good_ones";
    type Item = u64;
}

/// Returns the host's declarations.
pub fn types() -> SessionTypes {
    builder().build().expect("the declarations agree")
}

/// Starts the host's declarations, to which a test may add.
pub fn builder() -> SessionTypesBuilder {
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
                (None, "") => return Ok(SliceOp::Clear(Clear::All)),
                (None, line) => return Ok(SliceOp::Append(line.to_owned())),
                (Some(_), "") => {
                    items.remove(edit.place);
                }
                // The line `?` becomes a number that a replay must draw again.
                (Some(slot), "?") => *slot = context.generator().next_below(1000).to_string().into(),
                (Some(slot), line) => *slot = line.to_owned().into(),
            }
            Ok(SliceOp::Replace(items))
        })
        .reducer::<Draft, LinesPasted>(|_, pasted, _| Ok(SliceOp::Extend(pasted.lines.clone())))
        .reducer::<Draft, DraftTurned>(|lines, turned, _| {
            let mut items: Vec<Item<String>> = lines.items().collect();
            let by = turned.by.min(items.len());
            items.rotate_left(by);
            Ok(SliceOp::Replace(items))
        })
        .reducer::<Draft, LinesStruck>(|_, struck, _| {
            let holding = struck.holding.clone();
            Ok(SliceOp::Clear(Clear::Where(Box::new(move |line: &String| line.contains(&holding)))))
        })
        .slice::<Doubts>()
        .append_all::<Doubts>()
        .slice_with::<GoodOnes>(Policy::Log)
        .reducer::<GoodOnes, Doubted>(|ones, doubted, _| match doubted.good {
            true => Ok(SliceOp::Append(ones.len())),
            false => Err("it is doubtful".to_owned()),
        })
}

/// Asserts that a log's reducers return the recorded effects again, and that a fold of these
/// returns the recorded slices.
pub fn assert_reduced_again(reader: &LogReader, types: &SessionTypes) {
    let options = ReplayReducers { fold_produced: true, ..ReplayReducers::default() };
    let replayed = reader.replay_reducers(types, &options).expect("the log can be read");
    let same = replayed.slices.is_empty() && replayed.stopped.is_none();
    assert!(replayed.holds() && same, "{replayed}");
}
