//! Control characters in every name and text of a log.

use foldlog_codec::RecordKind;
use foldlog_codec::msgpack::MsgpackWriter;

use super::Make;
use super::forge::{Forge, opened};
use crate::report::Result;

/// Kinds of characters that act on a terminal.
const CHARACTERS: [(&str, &str); 7] = [
    ("C0", "\u{1b}[31m\u{7}\r\u{8}\u{0}\u{1}"),
    ("OSC", "\u{1b}]0;owned\u{7}\u{1b}\\"),
    ("DEL and C1", "\u{7f}\u{80}\u{85}\u{9b}2J\u{9d}0;owned\u{9c}"),
    ("bidirectional", "\u{202e}\u{2066}\u{2069}\u{200f}\u{61c}"),
    ("line ends", "one\ntwo\r\nthree\u{2028}four\u{2029}five\u{b}\u{c}"),
    ("format", "\u{ad}\u{200b}\u{2060}\u{feff}\u{fff9}\u{e0001}\u{e0041}"),
    ("quotes", "\"'\\ \u{1b}%s{}\t$(touch owned)"),
];

pub(super) fn shapes() -> Vec<(String, Make)> {
    let mut shapes: Vec<(String, Make)> = Vec::new();
    for (name, text) in CHARACTERS {
        shapes.push((format!("{name} in every name"), Box::new(move |base| everywhere(text)?.write(base))));
    }
    shapes.push((
        "bytes that are no UTF-8 in texts".to_owned(),
        Box::new(|base| {
            let mut forge = Forge::new(1)?;
            forge.event(b"\x81\xa4text\xa4\xff\xfe\x1b[")?;
            forge.record(RecordKind::Observed, b"\x82\xa1n\xa3\xc3\x28\x1b\xa1d\xc0")?;
            forge.record(RecordKind::Snapshot, b"\x81\xa3tag\xa2\xed\xa0")?;
            forge.write(base)
        }),
    ));
    shapes
}

/// Makes a log in which each name and text contains these characters.
fn everywhere(text: &str) -> Result<Forge> {
    let mut forge = Forge::empty(text.len() as u64, 0);
    let tags = |body: &mut MsgpackWriter| {
        body.str("tags").map(2).str(text).str(text).str("goal").str(text);
    };
    let id = forge.id;
    forge.record(RecordKind::Opened, &opened(id, tags, 1))?;
    forge.declare(&format!("event{text}"), &format!("slice{text}"))?;
    let mut payload = MsgpackWriter::new();
    payload.map(2).str(text).str(text).str("list").array(2).str(text).bin(text.as_bytes());
    let payload = payload.finish();
    forge.event(&payload)?;
    for (key, value) in [(text, Some(text)), ("plain", Some(text)), (text, None)] {
        let mut body = MsgpackWriter::new();
        body.map(2 + usize::from(value.is_some())).str("o").str("tag").str("key").str(key);
        if let Some(value) = value {
            body.str("value").str(value);
        }
        forge.record(RecordKind::Dispatch, &body.finish())?;
    }
    let mut observed = MsgpackWriter::new();
    observed.map(2).str("n").str(text).str("d").raw(&payload);
    forge.record(RecordKind::Observed, &observed.finish())?;
    let mut snapshot = MsgpackWriter::new();
    snapshot.map(1).str("tag").str(text);
    forge.record(RecordKind::Snapshot, &snapshot.finish())?;
    let tool = format!("tool{text}");
    for outcome in ["committed", "failed", "interrupted"] {
        let mut begin = MsgpackWriter::new();
        begin.map(5).str("t").str(&tool).str("call").str(text).str("args").str(text);
        begin.str("idem").str("keyed");
        begin.str("res").array(1).map(2).str("r").str(text).str("s").raw(&payload);
        forge.record(RecordKind::ToolBegin, &begin.finish())?;
        let operation = forge.next - 1;
        let back = outcome != "committed";
        let mut end = MsgpackWriter::new();
        end.map(9 + 2 * usize::from(back)).str("op").unsigned(operation).str("t").str(&tool);
        end.str("call").str(text).str("out").str(outcome);
        if back {
            end.str("why").str("error").str("back").bool(true);
        }
        end.str("us").unsigned(1).str("result").raw(&payload).str("shown").str(text);
        end.str("over").raw(&payload).str("s").unsigned(1);
        forge.record(RecordKind::ToolEnd, &end.finish())?;
        if outcome == "interrupted" {
            let mut settle = MsgpackWriter::new();
            settle.map(5).str("op").unsigned(operation).str("is").str("committed");
            settle.str("by").str(text).str("why").str(text).str("result").raw(&payload);
            forge.record(RecordKind::Settle, &settle.finish())?;
        }
    }
    let mut import = MsgpackWriter::new();
    import.map(2).str("tags").map(1).str(text).str(text);
    import.str("slices").array(1).map(2).str("s").unsigned(0).str("items").array(1).raw(&payload);
    forge.record(RecordKind::Import, &import.finish())?;
    conversation(&mut forge, text, &payload)?;
    // An open call only blocks `settle`.
    forge.begin(&tool, None, false)?;
    Ok(forge)
}

/// Adds a conversation in which each name and text contains these characters.
fn conversation(forge: &mut Forge, text: &str, payload: &[u8]) -> Result<()> {
    // `fields` is in addition to the fields of every record of a conversation.
    let body = |fields: usize| {
        let mut body = MsgpackWriter::new();
        body.map(2 + fields).str("ev").str(text).str("lane").str(text);
        body
    };
    let blocks = |body: &mut MsgpackWriter| {
        body.str("blocks").map(2).str("f").str(text).str("j").str(text);
    };
    let prompt = |body: &mut MsgpackWriter, name: &str| {
        body.str(name).map(3).str("ns").str(text).str("key").str(text).str("d").bin(&[7; 32]);
    };
    let mut system = body(3);
    system.str("r").str("system").str("c").str(text);
    prompt(&mut system, "p");
    forge.record(RecordKind::Input, &system.finish())?;
    let mut user = body(5);
    user.str("c").str(text).str("id").str(text).str("n").str(text).str("pp").str(text);
    blocks(&mut user);
    forge.record(RecordKind::Input, &user.finish())?;
    let mut request = body(2);
    request.str("m").str(text).str("par").str(text);
    forge.record(RecordKind::Request, &request.finish())?;
    let mut failed = body(2);
    failed.str("n").unsigned(1).str("fail").map(6).str("of").unsigned(forge.next - 1).str("why").str(text);
    failed.str("m").str(text).str("c").str(text).str("rid").str(text);
    failed.str("rate").array(2).str(text).str(text);
    forge.record(RecordKind::Request, &failed.finish())?;
    forge.record(RecordKind::Request, &body(0).finish())?;
    let mut answer = body(8);
    answer.str("to").unsigned(forge.next - 1).str("c").str(text);
    answer.str("calls").array(1).map(4).str("id").str(text).str("n").str(text).str("a").str(text);
    answer.str("cut").bool(true);
    answer.str("stop").str(text).str("m").str(text).str("rid").str(text).str("pp").str(text);
    blocks(&mut answer);
    forge.record(RecordKind::Answer, &answer.finish())?;
    let answered = forge.next - 1;
    let mut result = body(4);
    result.str("r").str("tool").str("c").str(text).str("call").str(text);
    result.str("by").array(2).unsigned(answered).unsigned(0);
    forge.record(RecordKind::Input, &result.finish())?;
    let mut turn = body(3);
    turn.str("n").unsigned(1).str("a").unsigned(answered).str("e").array(1).unsigned(answered + 1);
    forge.record(RecordKind::Turn, &turn.finish())?;
    let mut shortened = body(4);
    shortened.str("from").unsigned(answered).str("to").unsigned(answered + 1).str("why").str(text);
    shortened.str("msgs").array(1).map(2).str("r").str("user").str("c").str(text);
    forge.record(RecordKind::Shortened, &shortened.finish())?;
    let mut accepted = body(4);
    prompt(&mut accepted, "was");
    prompt(&mut accepted, "now");
    accepted.str("by").str(text).str("why").str(text);
    forge.record(RecordKind::PromptAccepted, &accepted.finish())?;
    let mut state = body(5);
    state.str("t").str(text).str("st").raw(payload).str("ent").str(text).str("at").str(text);
    state.str("res").bool(true);
    forge.record(RecordKind::AdapterState, &state.finish())
}
