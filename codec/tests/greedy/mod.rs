//! MessagePack that makes decoders take the most memory for the fewest bytes.

mod conversation;

use foldlog_codec::body::SLICES_MAX;
use foldlog_codec::msgpack::MsgpackWriter;

/// Encodes an array or a map of `count` entries: `head` writes its beginning, `one` writes each
/// entry.
fn many(
    count: usize,
    head: fn(&mut MsgpackWriter, usize),
    one: impl Fn(&mut MsgpackWriter, usize),
) -> Vec<u8> {
    let mut writer = MsgpackWriter::new();
    head(&mut writer, count);
    (0..count).for_each(|at| one(&mut writer, at));
    writer.finish()
}

fn array(writer: &mut MsgpackWriter, len: usize) {
    writer.array(len);
}

fn map(writer: &mut MsgpackWriter, len: usize) {
    writer.map(len);
}

pub(crate) fn field(name: &str, value: &[u8]) -> Vec<u8> {
    let mut writer = MsgpackWriter::new();
    writer.map(1).str(name).raw(value);
    writer.finish()
}

/// Returns values that take the most memory for the fewest bytes, each with a name.
pub(crate) fn greedy_values(count: usize) -> Vec<(&'static str, Vec<u8>)> {
    let deep = |byte: u8, levels: usize, end: &[u8]| [vec![byte; levels].as_slice(), end].concat();
    vec![
        (
            "array of nil",
            many(count, array, |writer, _| {
                writer.nil();
            }),
        ),
        (
            "array of 0",
            many(count, array, |writer, _| {
                writer.unsigned(0);
            }),
        ),
        (
            "array of empty text",
            many(count, array, |writer, _| {
                writer.str("");
            }),
        ),
        (
            "array of text of one byte",
            many(count, array, |writer, _| {
                writer.str("a");
            }),
        ),
        (
            "array of empty arrays",
            many(count, array, |writer, _| {
                writer.array(0);
            }),
        ),
        (
            "array of empty maps",
            many(count, array, |writer, _| {
                writer.map(0);
            }),
        ),
        (
            "array of arrays of one",
            many(count, array, |writer, _| {
                writer.array(1).nil();
            }),
        ),
        (
            "array of arrays of five",
            many(count, array, |writer, _| {
                writer.array(5).nil().nil().nil().nil().nil();
            }),
        ),
        (
            "array of maps of one",
            many(count, array, |writer, _| {
                writer.map(1).nil().nil();
            }),
        ),
        (
            "array of maps of text",
            many(count, array, |writer, _| {
                writer.map(1).str("").nil();
            }),
        ),
        (
            "array of empty extensions",
            many(count, array, |writer, _| {
                writer.ext(1, b"");
            }),
        ),
        (
            "array of deep arrays",
            many(count / 100, array, |writer, _| {
                (0..120).for_each(|_| {
                    writer.array(1);
                });
                writer.nil();
            }),
        ),
        (
            "map of nil",
            many(count, map, |writer, _| {
                writer.nil().nil();
            }),
        ),
        (
            "map of empty text",
            many(count, map, |writer, _| {
                writer.str("").str("");
            }),
        ),
        (
            "map of text",
            many(count, map, |writer, at| {
                writer.str(&format!("{at:x}")).str("");
            }),
        ),
        (
            "map of arrays",
            many(count, map, |writer, at| {
                writer.str(&format!("{at:x}")).array(0);
            }),
        ),
        ("text of one length", [&[0xdb][..], &(count as u32).to_be_bytes(), &vec![b'a'; count]].concat()),
        ("bytes of one length", [&[0xc6][..], &(count as u32).to_be_bytes(), &vec![0; count]].concat()),
        ("arrays down to the limit", deep(0x91, 128, &[0xc0])),
        ("arrays past the limit", deep(0x91, count, &[0xc0])),
        ("maps down to the limit", deep(0x81, 128, &[0xc0]).repeat(2)),
        ("no MessagePack at all", vec![0xc1; count]),
    ]
}

/// Returns bodies whose fields take the most memory for the fewest bytes, each with a name.
pub(crate) fn greedy_bodies(count: usize) -> Vec<(&'static str, Vec<u8>)> {
    let mut bodies = conversation::greedy_conversations(count);
    bodies.extend(greedy_records(count));
    bodies
}

fn greedy_records(count: usize) -> Vec<(&'static str, Vec<u8>)> {
    let effects = |value: &[u8]| {
        let mut writer = MsgpackWriter::new();
        writer.map(3).str("e").unsigned(0).str("d").nil().str("x").raw(value);
        writer.finish()
    };
    let of = |field: &str, value: &[u8]| {
        let mut writer = MsgpackWriter::new();
        writer.array(1).map(2).str("s").unsigned(0).str(field).raw(value);
        writer.finish()
    };
    let nothing = many(count, array, |writer, _| {
        writer.unsigned(0);
    });
    let zeros = many(2 * count, array, |writer, _| {
        writer.unsigned(0);
    });
    let slices = SLICES_MAX.min(count);
    let bound_to = |name: &str, bindings: usize| {
        let mut writer = MsgpackWriter::new();
        writer.map(2).str("events").array(1).map(3).str("id").unsigned(0).str("name").str("").str("to");
        writer.array(2 * bindings);
        (0..bindings).for_each(|_| {
            writer.unsigned(0).unsigned(0);
        });
        writer.str("slices").array(1).map(2).str("id").unsigned(0).str("name").str(name);
        writer.finish()
    };
    vec![
        (
            "effects in a byte each",
            effects(&many(slices, array, |writer, _| {
                writer.unsigned(1);
            })),
        ),
        (
            "effects on slices of their own",
            effects(&many(slices, array, |writer, at| {
                writer.unsigned(2 * at as u64 + 1);
            })),
        ),
        (
            "more effects than slices",
            effects(&many(count, array, |writer, _| {
                writer.unsigned(1);
            })),
        ),
        ("effects twice over", {
            let value = many(slices, array, |writer, _| {
                writer.unsigned(1);
            });
            let mut writer = MsgpackWriter::new();
            writer.map(4).str("e").unsigned(0).str("d").nil().str("x").raw(&value).str("x").raw(&value);
            writer.finish()
        }),
        (
            "empty effects",
            effects(&many(slices, array, |writer, _| {
                writer.map(1).str("s").unsigned(0);
            })),
        ),
        ("items added", effects(&of("a", &nothing))),
        ("items removed", effects(&of("r", &zeros))),
        (
            "tags",
            field(
                "tags",
                &many(count, map, |writer, at| {
                    writer.str(&format!("{at:x}")).str("");
                }),
            ),
        ),
        ("tags of an import", {
            let tags = many(count, map, |writer, at| {
                writer.str(&format!("{at:x}")).str("");
            });
            field("tags", &tags)
        }),
        ("tags of a session", {
            let mut writer = MsgpackWriter::new();
            writer.map(3).str("session").bin(&[0; 16]).str("seed").unsigned(0).str("tags");
            writer.raw(&many(count, map, |writer, at| {
                writer.str(&format!("{at:x}")).str("");
            }));
            writer.finish()
        }),
        (
            "events",
            field(
                "events",
                &many(count, array, |writer, at| {
                    writer.map(2).str("id").unsigned(at as u64).str("name").str("");
                }),
            ),
        ),
        (
            "events of one id",
            field(
                "events",
                &many(count, array, |writer, _| {
                    writer.map(2).str("id").unsigned(0).str("name").str("");
                }),
            ),
        ),
        (
            "slices",
            field(
                "slices",
                &many(count, array, |writer, at| {
                    writer.map(2).str("id").unsigned(at as u64).str("name").str("");
                }),
            ),
        ),
        ("bindings", bound_to("", count)),
        ("bindings to a slice of a long name", bound_to(&"n".repeat(count.min(1 << 16)), count)),
        ("events bound to a slice of a long name", {
            let mut writer = MsgpackWriter::new();
            writer.map(2).str("events").array(count / 16);
            for _ in 0..count / 16 {
                writer
                    .map(3)
                    .str("id")
                    .unsigned(0)
                    .str("name")
                    .str("")
                    .str("to")
                    .array(2)
                    .unsigned(0)
                    .unsigned(0);
            }
            writer.str("slices").array(1).map(2).str("id").unsigned(0).str("name").str(&"n".repeat(count));
            writer.finish()
        }),
        (
            "policies",
            field(
                "policies",
                &many(count, array, |writer, _| {
                    writer.str("log");
                }),
            ),
        ),
        (
            "slices of an import",
            field(
                "slices",
                &many(count, array, |writer, _| {
                    writer.map(1).str("s").unsigned(0);
                }),
            ),
        ),
        ("events that are none", field("events", &nothing)),
        ("slices that are none", field("slices", &nothing)),
        ("slices of an import that are none", field("slices", &nothing)),
        ("items of an import", field("slices", &of("items", &nothing))),
        ("items of an import and their versions", {
            let mut writer = MsgpackWriter::new();
            writer.map(1).str("slices").array(1).map(3).str("s").unsigned(0);
            writer.str("items").raw(&nothing).str("vers").raw(&nothing);
            writer.finish()
        }),
        (
            "a body of many fields",
            many(count, map, |writer, _| {
                writer.str("zz").nil();
            }),
        ),
        (
            "a version in every field",
            many(count, map, |writer, _| {
                writer.str("v").unsigned(1);
            }),
        ),
    ]
}
