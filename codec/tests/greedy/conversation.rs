//! Bodies of conversations that take the most memory for the fewest bytes.

use foldlog_codec::msgpack::MsgpackWriter;

use super::{array, many, map};

/// Starts a body of an evaluation without a name, with `fields` other fields.
fn body(fields: usize) -> MsgpackWriter {
    let mut writer = MsgpackWriter::new();
    writer.map(1 + fields).str("ev").str("");
    writer
}

fn with(name: &str, value: &[u8]) -> Vec<u8> {
    let mut writer = body(1);
    writer.str(name).raw(value);
    writer.finish()
}

/// Returns such bodies, each with a name.
pub(super) fn greedy_conversations(count: usize) -> Vec<(&'static str, Vec<u8>)> {
    let call = |writer: &mut MsgpackWriter| {
        writer.map(3).str("id").str("").str("n").str("").str("a").nil();
    };
    let calls = many(count, array, |writer, _| call(writer));
    let incomplete = many(count, array, |writer, _| {
        writer.map(4).str("id").str("").str("n").str("").str("a").array(0).str("cut").bool(true);
    });
    let named = many(count, array, |writer, _| {
        writer.map(3).str("id").str("i").str("n").str("n").str("a").str("a");
    });
    let headers = many(2 * count, array, |writer, _| {
        writer.str("");
    });
    let long_headers = many(2 * count, array, |writer, _| {
        writer.str("h");
    });
    let numbers = many(count, array, |writer, _| {
        writer.unsigned(0);
    });
    let messages = |role: &'static str| {
        let messages = many(count, array, |writer, _| {
            writer.map(2).str("r").str(role).str("c").nil();
        });
        let mut writer = body(3);
        writer.str("from").unsigned(0).str("to").unsigned(0).str("msgs").raw(&messages);
        writer.finish()
    };
    let mut bodies = vec![
        ("calls", with("calls", &calls)),
        ("calls that are cut", with("calls", &incomplete)),
        ("calls of one letter each", with("calls", &named)),
        ("headers of nothing", with("rate", &headers)),
        ("headers of one letter each", with("rate", &long_headers)),
        ("messages of a user", messages("user")),
        ("messages of a model", messages("assistant")),
        ("tokens counted often", {
            let tokens = many(count, map, |writer, _| {
                writer.str("in").unsigned(1);
            });
            with("use", &tokens)
        }),
    ];
    let mut twice = body(2);
    twice.str("calls").raw(&calls).str("calls").raw(&calls);
    bodies.push(("calls twice over", twice.finish()));
    let mut both = body(3);
    both.str("calls").raw(&calls).str("rate").raw(&headers).str("c").raw(&numbers);
    bodies.push(("calls and headers", both.finish()));
    let mut failed = body(1);
    failed.str("fail").map(2).str("of").unsigned(0).str("rate").raw(&headers);
    bodies.push(("headers of a failure", failed.finish()));
    let mut turn = body(4);
    turn.str("n").unsigned(0).str("a").unsigned(0).str("i").raw(&numbers).str("e").raw(&numbers);
    bodies.push(("parts of a turn", turn.finish()));
    let mut blocks = body(1);
    blocks.str("blocks").map(2).str("f").str(&"f".repeat(count)).str("j").raw(&numbers);
    bodies.push(("blocks of many values", blocks.finish()));
    let mut state = body(2);
    state.str("t").str(&"t".repeat(count)).str("st").raw(&calls);
    bodies.push(("a state of many values", state.finish()));
    let mut accepted = body(2);
    for name in ["was", "now"] {
        accepted.str(name).map(3).str("ns").str(&"n".repeat(count)).str("key").str(&"k".repeat(count));
        accepted.str("d").bin(&[0; 32]);
    }
    bodies.push(("prompts of long names", accepted.finish()));
    bodies
}
