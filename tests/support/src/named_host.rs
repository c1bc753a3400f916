//! The host of the tests without types known at compile time: the declarations of
//! [`host`](crate::host) by their names, with the same reducers over values.

use foldlog::{
    Clear, DynamicEvent, DynamicSlice, Item, Policy, ReducerContext, Result, SequenceNumber, Session,
    SessionTypes, Slice, SliceOp, Value, View,
};
use serde::Serialize;

use crate::host::{Doubted, Draft, DraftEdited, DraftTurned, LinesPasted, LinesStruck, Noted, Undeclared};
use crate::model::{Change, Cleared};

/// Returns the host's declarations without types.
pub fn types() -> SessionTypes {
    let draft = DynamicSlice::new("draft").items("draft_line", 2).upcast(Draft::upcast_item);
    SessionTypes::builder()
        .dynamic_slice("plan", Policy::State)
        .dynamic_slice("current_step", Policy::State)
        .dynamic_slice("step_of_part", Policy::State)
        .dynamic_slice("preview", Policy::Cache)
        .dynamic_slice("notes", Policy::Log)
        .dynamic_slice(DynamicSlice::new("note_sizes").items("note_size", 1), Policy::Log)
        .dynamic_slice(draft, Policy::State)
        .dynamic_slice("doubts", Policy::State)
        .dynamic_slice("good_ones", Policy::Log)
        .dynamic_event(
            DynamicEvent::new("plan.step_added")
                .append("plan")
                .replace("current_step")
                .upsert("step_of_part", "part")
                .append("preview"),
        )
        .dynamic_event(DynamicEvent::new("noted").append("notes").reduce("note_sizes", sizes))
        .dynamic_event(DynamicEvent::new("draft.edited").reduce("draft", edited))
        .dynamic_event(DynamicEvent::new("draft.lines_pasted").reduce("draft", |_, pasted, _| {
            Ok(SliceOp::Extend(pasted.get("lines").and_then(Value::as_array).unwrap_or_default().to_vec()))
        }))
        .dynamic_event(DynamicEvent::new("draft.turned").reduce("draft", |lines, turned, _| {
            let mut items: Vec<Item<Value>> = lines.items().collect();
            let by = number(turned, "by").min(items.len());
            items.rotate_left(by);
            Ok(SliceOp::Replace(items))
        }))
        .dynamic_event(DynamicEvent::new("draft.lines_struck").reduce("draft", |_, struck, _| {
            let holding = text(struck, "holding").to_owned();
            let holds = move |line: &Value| line.as_str().is_some_and(|line| line.contains(&holding));
            Ok(SliceOp::Clear(Clear::Where(Box::new(holds))))
        }))
        .dynamic_event(DynamicEvent::new("doubted").append("doubts").reduce(
            "good_ones",
            |ones, doubted, _| match doubted.get("good") == Some(&Value::Bool(true)) {
                true => Ok(SliceOp::Append(ones.len().into())),
                false => Err("it is doubtful".to_owned()),
            },
        ))
        .build()
        .expect("the declarations agree")
}

fn number(value: &Value, field: &str) -> usize {
    value.get(field).and_then(Value::as_u64).unwrap_or_default() as usize
}

fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value.get(field).and_then(Value::as_str).unwrap_or_default()
}

fn sizes(sizes: &View<Value>, noted: &Value, _: &ReducerContext) -> Result<SliceOp<Value>, String> {
    let total = |size: &Value| size.as_array().and_then(|size| size.get(1)?.as_u64());
    let before = sizes.latest().and_then(total).unwrap_or_default();
    let len = text(noted, "text").len() as u64;
    Ok(SliceOp::Append(Value::Array(vec![len.into(), (before + len).into()])))
}

fn edited(lines: &View<Value>, edit: &Value, context: &ReducerContext) -> Result<SliceOp<Value>, String> {
    let mut items: Vec<Item<Value>> = lines.items().collect();
    let place = number(edit, "place");
    match (items.get_mut(place), text(edit, "line")) {
        (None, "") => return Ok(SliceOp::Clear(Clear::All)),
        (None, line) => return Ok(SliceOp::Append(line.into())),
        (Some(_), "") => {
            items.remove(place);
        }
        (Some(slot), "?") => *slot = Value::from(context.generator().next_below(1000).to_string()).into(),
        (Some(slot), line) => *slot = Value::from(line).into(),
    }
    Ok(SliceOp::Replace(items))
}

/// Returns the recorded form of a typed host, as a value.
pub fn value(of: &impl Serialize) -> Value {
    let bytes = foldlog_codec::msgpack::to_vec(of).expect("it can be recorded");
    Value::decode(&bytes).expect("it is MessagePack")
}

/// Dispatches a change by names and values alone.
pub fn dispatch(session: &Session, change: &Change) -> Result<SequenceNumber> {
    dispatch_by(session, change, |session, name, value| session.dynamic().dispatch(name, value))
}

/// Dispatches a change by names and values alone; `event` dispatches events.
pub fn dispatch_by(
    session: &Session,
    change: &Change,
    event: impl Fn(&Session, &str, Value) -> Result<SequenceNumber>,
) -> Result<SequenceNumber> {
    let event = |name, value| event(session, name, value);
    let values = |items: &[_]| items.iter().map(value).collect();
    match change.clone() {
        Change::Step(step) => event("plan.step_added", value(&step)),
        Change::Note(text) => event("noted", value(&Noted { text })),
        Change::Edit(place, line) => event("draft.edited", value(&DraftEdited { place, line })),
        Change::Paste(lines) => event("draft.lines_pasted", value(&LinesPasted { lines })),
        Change::Turn(by) => event("draft.turned", value(&DraftTurned { by })),
        Change::Strike(holding) => event("draft.lines_struck", value(&LinesStruck { holding })),
        Change::Doubt(good) => event("doubted", value(&Doubted { good })),
        Change::Undeclared(number) => event("undeclared", value(&Undeclared { value: number })),
        Change::SeedPlan(steps) => session.dynamic().seed("plan", values(&steps)),
        Change::SeedDraft(lines) => {
            session.dynamic().seed("draft", lines.into_iter().map(Value::from).collect())
        }
        Change::SeedPreview(steps) => session.dynamic().seed("preview", values(&steps)),
        Change::SeedNotes(notes) => session.dynamic().seed("notes", notes.iter().map(value).collect()),
        Change::Clear(Cleared::Plan) => session.dynamic().clear("plan"),
        Change::Clear(Cleared::StepOfPart) => session.dynamic().clear("step_of_part"),
        Change::Clear(Cleared::Draft) => session.dynamic().clear("draft"),
        Change::Clear(Cleared::Preview) => session.dynamic().clear("preview"),
        Change::Clear(Cleared::Notes) => session.dynamic().clear("notes"),
        Change::Clear(Cleared::Undeclared) => session.dynamic().clear("undeclared"),
        Change::ClearPart(part) => {
            session.dynamic().clear_where("plan", move |step| number(step, "part") == usize::from(part))
        }
        Change::Reset => session.reset(),
        Change::Tag(key, Some(value)) => session.set_tag(key, value),
        Change::Tag(key, None) => session.remove_tag(key),
    }
}
