//! Logs whose frames are valid, and whose content no writer would write.

use foldlog_codec::RecordKind;
use foldlog_codec::frame::{TIME_US_MAX, TIME_US_MIN};
use foldlog_codec::msgpack::MsgpackWriter;
use foldlog_codec::segment::Previous;
use uuid::Uuid;

use super::Make;
use super::forge::{Forge, opened};
use crate::report::Result;

/// Adds a shape to a new session.
type Shape = fn(&mut Forge) -> Result<()>;

/// Length of sparse objects.
const OBJECT_BYTES: u64 = 64 << 20;

const SHAPES: [(&str, Shape); 37] = [
    ("4,300 begins within one another, left open", |log| nested(log, 4_300, false)),
    ("4,300 reading begins beside one another, left open", |log| {
        (0..4_300).try_for_each(|_| log.begin("t", None, true).map(drop))
    }),
    ("200 begins within one another, ended inside out", |log| nested(log, 200, true)),
    ("begins within ones that never were", |log| {
        log.begin("t", Some(90), false)?;
        log.begin("t", Some(u64::MAX), false).map(drop)
    }),
    ("a sparse object named 20 times by events", |log| named_by_events(log, 20)),
    ("a sparse object named 20 times by one record", |log| named_by_one(log, 20)),
    ("a sparse object of many values", |log| {
        // An array of 67,108,859 zeros, each a value of one byte.
        let reference = log.object(&[0xdd, 0x03, 0xff, 0xff, 0xfb], OBJECT_BYTES);
        log.event(&reference)
    }),
    ("an object that is no MessagePack", |log| {
        let reference = log.object(&[0xc1, 0xc1], 4_096);
        log.event(&reference)
    }),
    ("objects of absurd lengths that are not there", |log| {
        for len in [u64::MAX, 1 << 62, 1 << 31, 0] {
            let mut name = [0x11; 40];
            name[32..].copy_from_slice(&len.to_le_bytes());
            let mut reference = MsgpackWriter::new();
            reference.ext(1, &name);
            log.event(&reference.finish())?;
        }
        Ok(())
    }),
    ("an array that claims 4 billion values", |log| log.event(&[0xdd, 0xff, 0xff, 0xff, 0xff, 0xc0])),
    ("a map that claims 4 billion values", |log| log.event(&[0xdf, 0xff, 0xff, 0xff, 0xff, 0xc0, 0xc0])),
    ("a text that claims 4 GiB", |log| log.event(&[0xdb, 0xff, 0xff, 0xff, 0xff, b'a'])),
    ("bytes that claim 4 GiB", |log| log.event(&[0xc6, 0xff, 0xff, 0xff, 0xff, 0])),
    ("an extension that claims 4 GiB", |log| log.event(&[0xc9, 0xff, 0xff, 0xff, 0xff, 1, 0])),
    ("arrays 128 deep", |log| log.event(&deep(128, 0x91))),
    ("arrays a million deep", |log| log.event(&deep(1_000_000, 0x91))),
    ("maps 100,000 deep", |log| log.event(&deep(100_000, 0x81))),
    ("values of one byte, four million of them, three times", |log| {
        let mut payload = vec![0xdd, 0x00, 0x3f, 0xff, 0x00];
        payload.resize(payload.len() + 0x3f_ff00, 0xc0);
        (0..3).try_for_each(|_| log.event(&payload))
    }),
    ("20,000 rollbacks to the beginning", |log| {
        log.text("one")?;
        (0..20_000).try_for_each(|_| rollback(log, 1))
    }),
    ("8,000 chained rollbacks", |log| {
        (0..8_000).try_for_each(|_| {
            log.text("one")?;
            let to = log.next - 2;
            rollback(log, to)
        })
    }),
    ("rollbacks to what is not there yet", |log| {
        for to in [log.next, log.next + 1, u64::MAX] {
            rollback(log, to)?;
        }
        Ok(())
    }),
    ("a rollback into an open call", |log| {
        let begin = log.begin("t", None, false)?;
        log.text("within")?;
        rollback(log, begin + 1)
    }),
    ("10,000 unsettled operations", |log| {
        (0..10_000).try_for_each(|_| {
            let begin = log.begin("t", None, false)?;
            log.tool_end(begin, "t", "interrupted", "")
        })
    }),
    ("ends and settlements of what never began", |log| {
        log.tool_end(1, "t", "failed", "")?;
        log.tool_end(u64::MAX, "t", "committed", "")?;
        let mut settle = MsgpackWriter::new();
        settle.map(4).str("op").unsigned(900).str("is").str("failed").str("by").str("b").str("why").str("w");
        log.record(RecordKind::Settle, &settle.finish())
    }),
    ("one call that ends twice", |log| {
        let begin = log.begin("t", None, false)?;
        log.tool_end(begin, "t", "committed", "")?;
        log.tool_end(begin, "t", "failed", "")
    }),
    ("events and slices that nobody declared", |log| {
        log.record(RecordKind::Dispatch, b"\x82\xa1e\xce\xff\xff\xff\xff\xa1d\xc0")?;
        log.record(RecordKind::Dispatch, b"\x82\xa1o\xa4seed\xa1x\x91\xce\xff\xff\xff\xfe")
    }),
    ("items removed that never were", |log| {
        log.record(RecordKind::Dispatch, b"\x82\xa1o\xa5clear\xa1x\x91\x82\xa1s\x00\xa1r\x92\xcd\x03\xe8\x05")
    }),
    ("declarations that contradict one another", |log| {
        log.declare("e", "s")?;
        log.declare("other", "s")?;
        log.declare("e", "another")
    }),
    ("4,096 slices of long names", |log| slices(log, 4_096, 200)),
    ("4,097 slices", |log| slices(log, 4_097, 1)),
    ("two first records", |log| {
        let id = log.id;
        log.record(RecordKind::Opened, &opened(id, |_| {}, 0))
    }),
    ("times at the ends of time", |log| {
        for time_us in [TIME_US_MIN, TIME_US_MAX, 0, TIME_US_MIN] {
            log.time_us = time_us;
            log.text("when")?;
        }
        Ok(())
    }),
    ("every kind there may be", |log| {
        (1..=255).filter_map(RecordKind::from_byte).try_for_each(|kind| match kind.is_envelope() {
            true => log.frame(kind, &[]),
            false => log.record(kind, &[0x80]),
        })
    }),
    ("newest first, 40,000 of them", |log| {
        for at in 0..40_000_u64 {
            let mut body = MsgpackWriter::new();
            let anchored = at > 0;
            body.map(2).str("o").str("seed").str("x").array(1).map(2 + usize::from(anchored));
            body.str("s").unsigned(0).str("a").array(1).unsigned(at);
            if anchored {
                body.str("b").array(2).unsigned(log.next - 1).unsigned(0);
            }
            log.record(RecordKind::Dispatch, &body.finish())?;
        }
        Ok(())
    }),
    ("bodies of nothing, of one byte, and of 16 MiB", |log| {
        log.record(RecordKind::Dispatch, &[])?;
        log.record(RecordKind::Dispatch, &[0xc1])?;
        log.record(RecordKind::Dispatch, &vec![0x90; 16 << 20])
    }),
    ("100,000 tags", |log| {
        for n in 0..100_000 {
            let mut body = MsgpackWriter::new();
            body.map(3).str("o").str("tag").str("key").str(&format!("tag {n}")).str("value").str("v");
            log.record(RecordKind::Dispatch, &body.finish())?;
        }
        Ok(())
    }),
    ("a state of 36 MiB of text", |log| {
        let text = "a".repeat(12 << 20);
        (0..3).try_for_each(|_| log.text(&text))
    }),
];

/// Shapes that take a while to print, for the long form.
const LONG_SHAPES: [(&str, Shape); 2] = [
    ("a sparse object named 200 times by events", |log| named_by_events(log, 200)),
    ("a sparse object named 200 times by one record", |log| named_by_one(log, 200)),
];

fn named_by_events(log: &mut Forge, times: usize) -> Result<()> {
    let reference = log.object(&[0xc6, 0x03, 0xff, 0xff, 0xfb], OBJECT_BYTES);
    (0..times).try_for_each(|_| log.event(&reference))
}

fn named_by_one(log: &mut Forge, times: usize) -> Result<()> {
    let reference = log.object(&[0xc6, 0x03, 0xff, 0xff, 0xfb], OBJECT_BYTES);
    seed(log, &vec![reference; times])
}

pub(super) fn shapes(seed: u64, long: bool) -> Vec<(String, Make)> {
    let mut shapes: Vec<(String, Make)> = Vec::new();
    let of_long: &[_] = if long { &LONG_SHAPES } else { &[] };
    for (name, shape) in SHAPES.iter().chain(of_long) {
        let make: Make = Box::new(move |base| {
            let mut forge = Forge::new(seed)?;
            shape(&mut forge)?;
            forge.synced()?;
            forge.write(base)
        });
        shapes.push(((*name).to_owned(), make));
    }
    if long {
        let make: Make = Box::new(move |base| {
            let mut forge = Forge::new(seed)?;
            let text = "b".repeat(10 << 20);
            (0..20).try_for_each(|_| forge.text(&text))?;
            forge.synced()?;
            forge.write(base)
        });
        shapes.push(("a state of 200 MiB of text".to_owned(), make));
    }
    shapes.push((
        "sequence numbers at their end".to_owned(),
        Box::new(move |base| {
            let mut forge = Forge::empty(seed, u64::MAX - 3);
            let id = forge.id;
            forge.record(RecordKind::Opened, &opened(id, |_| {}, 0))?;
            forge.text("one")?;
            forge.write(base)
        }),
    ));
    shapes.push(("segments in a circle".to_owned(), Box::new(move |base| circle(seed)?.write(base))));
    shapes.push((
        "a fork of itself".to_owned(),
        Box::new(move |base| {
            let mut forge = Forge::empty(seed, 0);
            let id = forge.id;
            forge.record(RecordKind::Opened, &opened(id, |body| parent(body, id, "fork"), 1))?;
            forge.declare("e", "s")?;
            forge.write(base)
        }),
    ));
    shapes.push((
        "sessions that are one another's parents".to_owned(),
        Box::new(move |base| {
            let (one, other) = (Forge::empty(seed, 0), Forge::empty(seed + 1, 0));
            let pair = [(one.clone(), other.id, "child"), (other, one.id, "fork")];
            let mut last = None;
            for (mut forge, of, how) in pair {
                let id = forge.id;
                forge.record(RecordKind::Opened, &opened(id, |body| parent(body, of, how), 1))?;
                last = Some(forge.write(base)?);
            }
            last.ok_or_else(|| "two were written".into())
        }),
    ));
    shapes.push((
        "300 sessions, each the last one's child".to_owned(),
        Box::new(move |base| {
            let mut before: Option<Uuid> = None;
            let mut last = None;
            for n in 0..300 {
                let mut forge = Forge::empty(seed + n, 0);
                let id = forge.id;
                let fields = usize::from(before.is_some());
                let parent =
                    |body: &mut MsgpackWriter| before.into_iter().for_each(|of| parent(body, of, "child"));
                forge.record(RecordKind::Opened, &opened(id, parent, fields))?;
                before = Some(id);
                last = Some(forge.write(base)?);
            }
            last.ok_or_else(|| "some were written".into())
        }),
    ));
    shapes
}

fn nested(log: &mut Forge, count: u64, ended: bool) -> Result<()> {
    let mut open = Vec::new();
    for _ in 0..count {
        open.push(log.begin("t", open.last().copied(), false)?);
        log.text("within")?;
    }
    if ended {
        open.iter().rev().try_for_each(|begin| log.tool_end(*begin, "t", "failed", ""))?;
    }
    Ok(())
}

fn seed(log: &mut Forge, items: &[Vec<u8>]) -> Result<()> {
    let mut body = MsgpackWriter::new();
    body.map(2).str("o").str("seed").str("x").array(1).map(2).str("s").unsigned(0);
    body.str("a").array(items.len());
    items.iter().for_each(|item| {
        body.raw(item);
    });
    log.record(RecordKind::Dispatch, &body.finish())
}

fn rollback(log: &mut Forge, to: u64) -> Result<()> {
    let mut body = MsgpackWriter::new();
    body.map(1).str("to").unsigned(to);
    log.record(RecordKind::Rollback, &body.finish())
}

fn slices(log: &mut Forge, count: usize, len: usize) -> Result<()> {
    let mut body = MsgpackWriter::new();
    body.map(1).str("slices").array(count);
    for n in 0..count {
        body.map(2).str("id").unsigned(n as u64 + 2).str("name").str(&format!("{n}{}", "s".repeat(len)));
    }
    log.record(RecordKind::Declare, &body.finish())
}

/// Returns a value of this many nested arrays or maps. A map's key is 0.
fn deep(depth: usize, head: u8) -> Vec<u8> {
    let mut bytes = Vec::new();
    for _ in 0..depth {
        bytes.push(head);
        if head == 0x81 {
            bytes.push(0);
        }
    }
    bytes.push(0xc0);
    bytes
}

fn parent(body: &mut MsgpackWriter, of: Uuid, how: &str) {
    let fork = how == "fork";
    body.str("parent").map(if fork { 4 } else { 2 }).str("session").bin(of.as_bytes()).str("how").str(how);
    if fork {
        body.str("position").unsigned(0).str("chain").unsigned(0);
    }
}

/// Makes two segments, each of which names the other as its predecessor.
fn circle(seed: u64) -> Result<Forge> {
    let id = Forge::empty(seed, 0).id;
    let previous = Previous { ordinal: 0, end: 84, crc: 5 };
    let mut forge = Forge::segment(id, 0, 0, seed, Some(previous));
    forge.record(RecordKind::Opened, &opened(id, |_| {}, 0))?;
    Ok(forge)
}
