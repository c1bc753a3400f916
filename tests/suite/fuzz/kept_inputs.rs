//! Creation of the kept inputs: from the codec's golden files, and from small logs with every kind
//! of record.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use foldlog::{CompactOptions, Compression, Durability, Export, ImportOptions, Record, RecordKind};
use foldlog_codec::body::{Base, BaseSlice, ItemId, ItemRun, KnownPositions, ObjectId};
use foldlog_codec::frame::HEADER_LEN;
use foldlog_remote::chunk::{ChunkEncoder, ChunkHash, ChunkHead, Epoch, WriterId};
use foldlog_remote::compaction::{CompactedVolume, Compaction};
use foldlog_remote::volume::{self, Extent};
use foldlog_remote::withdrawal::{Name, Withdrawal};
use foldlog_test_support::crash::{BOOT, Machine, write_steps};
use foldlog_test_support::host::{DraftEdited, Noted, types};
use foldlog_tests::fuzz::{BUILT, FITTED, Set, UNPACKED, UNPADDED, input_of_pack, sound_pack};
use uuid::Uuid;

use super::directory;
use crate::damage::everything::everything;

fn write(target: &str, name: &str, input: &[u8]) {
    fs::create_dir_all(directory(target)).unwrap();
    fs::write(directory(target).join(name), input).unwrap();
}

/// Returns the golden files by their names without extensions: each contains a frame, a segment's
/// header, or an image.
fn golden() -> BTreeMap<String, Vec<u8>> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../codec/tests/golden");
    let files = fs::read_dir(directory).unwrap().map(|file| file.unwrap().path());
    let binary = files.filter(|path| path.extension().is_some_and(|extension| extension == "bin"));
    binary
        .map(|path| (path.file_stem().unwrap().to_str().unwrap().to_owned(), fs::read(&path).unwrap()))
        .collect()
}

fn is_frame(name: &str) -> bool {
    !name.starts_with("segment") && !name.starts_with("image")
}

fn files(machine: &Machine, id: Uuid) -> BTreeMap<PathBuf, Vec<u8>> {
    let dir = machine.dir(id);
    let files = machine.disk.dump().into_iter();
    files.filter_map(|(path, bytes)| Some((path.strip_prefix(&dir).ok()?.to_owned(), bytes))).collect()
}

/// Returns records of a log as an input from which a log can be built, up to the limit of such
/// inputs.
fn records(machine: &Machine, id: Uuid, from: usize, len: usize) -> Vec<u8> {
    let mut records: Vec<(RecordKind, Vec<u8>)> = Vec::new();
    let take = |record: &Record<'_>| {
        records.push((record.kind, record.body.to_vec()));
        Ok(())
    };
    machine.audit(id).unwrap().records(0, u64::MAX, take).unwrap();
    // Each starts like a session, with its opening record.
    let opened = records[..1].iter().chain(records.iter().skip(from.max(1)).take(len));
    Set::input_of_records(opened.map(|(kind, body)| (*kind, body.as_slice())))
}

/// Returns a log of two segments, small enough for many copies.
fn small() -> (Machine, Uuid) {
    let machine = Machine::default().with_images();
    let session = machine.process(Durability::Boundary).create(&types()).unwrap();
    write_steps(&session, 9);
    session.dispatch(Noted { text: "a note".to_owned() }).unwrap();
    session.rollback_to(4).unwrap();
    let id = session.id();
    session.close().unwrap();
    (machine, id)
}

/// Returns a log of two segments, of which the first is compressed although it is short.
fn compressed(codec: Compression) -> (Machine, Uuid) {
    let machine = Machine::default();
    let session = machine.process(Durability::Boundary).create(&types()).unwrap();
    write_steps(&session, 20);
    let id = session.id();
    session.close().unwrap();
    let options = CompactOptions {
        compression: Some(codec),
        compress_bytes_min: Some(1024),
        keep_bodies: true,
        ..CompactOptions::default()
    };
    let report = machine.process(Durability::Boundary).compact(id, &options).unwrap();
    assert!(report.compressed.unwrap().segments > 0);
    (machine, id)
}

fn write_segments() {
    let (machine, fork, parent) = everything();
    for (name, id) in [("parent", parent), ("fork", fork)] {
        let files = files(&machine, id);
        write("segments", &format!("{name}-files"), &Set::input(0, &files));
        for (path, bytes) in files.iter().filter(|(path, _)| path.extension().is_some_and(|it| it == "seg")) {
            let used = bytes.iter().rposition(|byte| *byte != 0).unwrap() + 1;
            write(
                "frames",
                &format!("{name}-{}", path.file_stem().unwrap().to_str().unwrap()),
                &bytes[..used],
            );
        }
    }
    write("segments", "parent-files-fitted", &Set::input(FITTED, &files(&machine, parent)));
    for (nth, from) in (0..70).step_by(10).enumerate() {
        write("segments", &format!("records-{nth}"), &records(&machine, fork, from, 10));
    }
    write("segments", "records-all", &records(&machine, fork, 0, usize::MAX));
    let (machine, id) = small();
    write("segments", "small-files", &Set::input(0, &files(&machine, id)));
    write("segments", "small-files-images-fitted", &Set::input(8, &files(&machine, id)));
    let compacted = machine.copied(BOOT);
    let session = compacted.open(id, Durability::Boundary).unwrap();
    for n in 0..30 {
        session.dispatch(DraftEdited { place: 0, line: format!("{n}{}", "x".repeat(90)) }).unwrap();
    }
    session.close().unwrap();
    let store = compacted.process(Durability::Boundary);
    assert!(store.compact(id, &CompactOptions::default()).unwrap().dropped > 20);
    write("segments", "compacted-files", &Set::input(0, &files(&compacted, id)));
    for (name, flags) in [("compressed-files", UNPADDED), ("compressed-files-fitted", UNPADDED | UNPACKED)] {
        for codec in [Compression::Zstd, Compression::Lz4] {
            let (machine, id) = compressed(codec);
            write("segments", &format!("{name}-{codec}"), &Set::input(flags, &files(&machine, id)));
        }
    }
    write("segments", "small-files-power-cut", &Set::input(4, &files(&machine, id)));
    let mut envelopes = vec![BUILT];
    for (name, frame) in golden() {
        if let Some(kind) = frame.get(20).copied().filter(|_| is_frame(&name)) {
            // Records without context, one after the other: they refer to no other records of this
            // log.
            envelopes.extend([kind, 1]);
            envelopes.extend(((frame.len() - HEADER_LEN) as u16).to_le_bytes());
            envelopes.extend(&frame[HEADER_LEN..]);
        }
    }
    write("segments", "records-golden", &envelopes);
}

fn write_exports() {
    let (machine, fork, parent) = everything();
    for (name, id) in [("parent", parent), ("fork", fork), ("small", small().1)] {
        let small = small().0;
        let machine = if name == "small" { &small } else { &machine };
        let session = machine.process(Durability::Boundary).open_read_only(id, &types()).unwrap();
        let text = session.log().export().unwrap().to_json().unwrap();
        // One line has fewer meaningless bytes.
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        write("snapshot_json", name, value.to_string().as_bytes());
    }
    let foreign = r#"{"version":"1","created_at":"2026-01-02T03:04:05.000006+02:00","parent_id":null,"children_ids":["00112233-4455-6677-8899-aabbccddeeff"],"tags":{"task":"7"},"policies":{"mine":"log","plan":"state"},"slices":[{"slice_type":"mine","item_type":"any","items":[null,true,-1,1.5,"ü",[],{"a":{"b":[1]}}],"item_versions":[1,2,3,1,1,1,1]},{"slice_type":"plan","item_type":"plan.step_added","items":[{"title":"t","part":3}]},{"slice_type":"tool_invoked","item_type":"foreign","items":[{"tool":"x"}]}]}"#;
    Export::from_json(foreign).unwrap();
    write("snapshot_json", "foreign", foreign.as_bytes());
    let draft = r#"{"version":"1","created_at":"2026-01-02T03:04:05Z","parent_id":"00112233-4455-6677-8899-aabbccddeeff","slices":[{"slice_type":"draft","item_type":"draft_line","items":[{"line":"old"},"new"],"item_versions":[1,2]}]}"#;
    Export::from_json(draft).unwrap();
    write("snapshot_json", "older-items", draft.as_bytes());
    assert!(ImportOptions::default() == ImportOptions { keep_unknown: false, ..ImportOptions::default() });
}

fn write_runs() {
    let call = r#"{"id":"call_1","type":"function","function":{"name":"find","arguments":"{\"q\": 1}"}}"#;
    let failing = r#"{"id":"call_1","function":{"name":"book","arguments":{"a":[1,2.5,null]}}}"#;
    let messages = format!(
        r#"[{{"role":"system","content":"be kind"}},{{"role":"user","content":"hello"}},{{"role":"assistant","content":null,"tool_calls":[{call},{failing}]}},{{"role":"tool","tool_call_id":"call_1","content":"found"}},{{"role":"tool","content":[{{"type":"text","text":"Error: no"}}]}},{{"role":"assistant","content":"done","tool_calls":null}}]"#
    );
    let tau = format!(
        r#"[{{"task_id":7,"trial":"0","reward":1.0,"traj":{messages}}},{{"task_id":"x","trial":-1,"traj":[]}}]"#
    );
    write("import", "tau-bench", &[b"\x00", tau.as_bytes()].concat());
    write("import", "tau-bench-none", b"\x00[]");
    write(
        "import",
        "swe-agent-calls",
        &[b"\x01", format!(r#"{{"history":{messages},"info":{{}}}}"#).as_bytes()].concat(),
    );
    let chat = r#"[{"role":"system","content":"s"},{"role":"user","content":[{"type":"text","text":"q"}]},{"role":"assistant","content":null,"refusal":"no","tool_calls":[{"id":"a","type":"function","function":{"name":"n","arguments":"{}"}}]},{"role":"tool","tool_call_id":"a","name":"n","content":"r"}]"#;
    write("import", "openai-array", &[b"\x03", chat.as_bytes()].concat());
    write(
        "import",
        "openai-lines",
        b"\x03{\"role\":\"user\",\"content\":\"q\"}\n{\"role\":\"assistant\",\"content\":\"a\"}\n",
    );
    let actions = r#"{"history":[{"role":"system","content":"s","message_type":"system_prompt"},{"role":"user","content":"o","message_type":"observation"},{"role":"assistant","content":"look","action":"ls -la /","message_type":"action"},{"role":"user","content":"Error: none","message_type":"observation"},{"role":"assistant","content":"go","action":"submit\n","message_type":"action"}]}"#;
    write("import", "swe-agent-actions", &[b"\x01", actions.as_bytes()].concat());
}

fn write_transcripts() {
    let user = |rest: &str, content: &str| {
        format!(r#"{{"type":"user",{rest},"message":{{"role":"user","content":{content}}}}}"#)
    };
    let calls = r#"{"type":"assistant","uuid":"a1","parentUuid":"u1","timestamp":"2026-01-01T00:00:02Z","message":{"id":"m1","role":"assistant","model":"m","usage":{"input_tokens":1,"output_tokens":2},"content":[{"type":"tool_use","id":"c1","name":"Agent","input":{"prompt":"look"}}]}}"#;
    let more = r#"{"type":"assistant","uuid":"a2","parentUuid":"a1","timestamp":"2026-01-01T00:00:03Z","message":{"id":"m1","role":"assistant","content":[{"type":"tool_use","id":"c2","name":"Read","input":{}}]}}"#;
    let results = |rest: &str, id: &str| {
        let result =
            format!(r#"[{{"type":"tool_result","tool_use_id":"{id}","content":"r","is_error":true}}]"#);
        user(rest, &result)
    };
    let lines = [
        r#"{"type":"file-history-snapshot","messageId":"u1","snapshot":{"trackedFileBackups":{"a":{"backupFileName":null},"b":{"backupFileName":"b@v1"}}}}"#.to_owned(),
        user(r#""uuid":"u1","parentUuid":null,"timestamp":"2026-01-01T00:00:01Z""#, r#""q""#),
        calls.to_owned(),
        more.to_owned(),
        results(r#""uuid":"r1","parentUuid":"a1","timestamp":"2026-01-01T00:00:04Z","toolUseResult":{"agentId":"0"}"#, "c1"),
        results(r#""uuid":"r2","parentUuid":"a2","timestamp":"2026-01-01T00:00:05Z""#, "c2"),
        user(r#""uuid":"u2","parentUuid":"r2","timestamp":"2026-01-01T00:00:06Z""#, "null"),
        user(r#""uuid":"u3","parentUuid":"r2","timestamp":"2026-01-01T00:00:07Z""#, r#"[{"type":"text","text":"t"}]"#),
        r#"{"type":"system","uuid":"b","parentUuid":null,"logicalParentUuid":"u3","timestamp":"2026-01-01T00:00:08Z"}"#.to_owned(),
        user(r#""uuid":"u4","parentUuid":"b","timestamp":"2026-01-01T00:00:09Z""#, r#""x""#),
        user(r#""uuid":"u5","parentUuid":"gone","timestamp":"2026-01-01T00:00:03Z""#, r#""y""#),
        user(r#""uuid":"u6","parentUuid":"u7""#, r#""z""#),
        user(r#""uuid":"u7","parentUuid":"u6""#, r#""z""#),
        user(r#""uuid":"u1","parentUuid":null,"timestamp":"2026-01-01T00:00:01Z""#, r#""q""#),
    ];
    let agent = [
        user(r#""uuid":"s1","isSidechain":true,"agentId":"0""#, r#""look""#),
        calls.replace("a1", "s2").replace("u1", "s1").replace("c1", "k1").replace("m1", "n1"),
    ];
    let (lines, agent) = (lines.join("\n"), agent.join("\n"));
    write("claude_code", "everything", &[lines.as_bytes(), b"\0", agent.as_bytes()].concat());
    write("claude_code", "sidechain", [agent.as_str(), &lines].join("\n").as_bytes());
    write("claude_code", "alone", lines.as_bytes());
    write("claude_code", "torn", &lines.as_bytes()[..lines.len() - 5]);
}

/// Writes objects of a bucket of sessions, without the hashes at their ends, which a fuzzer would
/// not find.
fn write_chunks() {
    let session = Uuid::from_u128(7);
    let head = |number: u64, note: &str| ChunkHead {
        session,
        number,
        epoch: Epoch::new(1),
        writer: WriterId(Uuid::from_bytes([3; 16])),
        nonce: [5; 16],
        previous: ChunkHash([number as u8; 32]),
        first_sequence: 0.into(),
        note: note.to_owned(),
    };
    let records = |mut encoder: ChunkEncoder| {
        for (sequence, body) in [&b"one"[..], b"", b"three"].iter().enumerate() {
            let record =
                Record { sequence: (sequence as u64).into(), kind: RecordKind::Dispatch, time_us: -1, body };
            encoder.push(record).unwrap();
        }
        encoder.finish().bytes
    };
    let mut captures = ChunkEncoder::new(head(2, "")).unwrap();
    captures
        .set_captures(&[ObjectId::from_content(b"a pack"), ObjectId::from_content(b"another")], b"a third")
        .unwrap();
    let claim = ChunkEncoder::new(ChunkHead { previous: ChunkHash::default(), ..head(0, "worker") }).unwrap();
    let chunks = [claim.finish().bytes, records(ChunkEncoder::new(head(1, "")).unwrap()), records(captures)];
    let extent = Extent { first: 0, count: 3 };
    let mut volume =
        volume::VolumeEncoder::new(volume::VolumeForm::Whole, session, extent, chunks.iter().map(Vec::len))
            .unwrap();
    chunks.iter().for_each(|chunk| volume.push(chunk));
    let volume = volume.finish().unwrap();
    let named = |first, count| CompactedVolume { extent: Extent { first, count }, len: 300, hash: [8; 32] };
    let volumes = vec![named(0, 64), named(128, 192)];
    let compaction = Compaction { session, number: 1, said_at: 70, known: [7; 32], volumes };
    let compaction = compaction.encode().unwrap();
    let names = vec![Name { hash: [7; 32], before: 0 }, Name { hash: [7; 32], before: 1 }];
    let withdrawal = Withdrawal { session, number: 1, names }.encode().unwrap();
    let [claim, plain, captures] = &chunks;
    let compacted = [b"FOLDRMC\n", &plain[8..]].concat();
    let kept = [
        ("claim", claim),
        ("records", plain),
        ("captures", captures),
        ("volume", &volume),
        ("compacted", &compacted),
        ("compaction", &compaction),
        ("withdrawal", &withdrawal),
    ];
    for (name, bytes) in kept {
        write("chunks", name, &bytes[..bytes.len() - 32]);
    }
}

fn write_known_positions() {
    let item = |sequence: u64, version, count| ItemRun {
        first: ItemId { sequence: sequence.into(), ordinal: 0 },
        version,
        count,
    };
    let base = |position: u64, goes_on, slices| Base { position: position.into(), goes_on, slices };
    let slice = |slice, items| BaseSlice { slice, items };
    let one = base(5, false, vec![slice(2, vec![item(1, 1, 2), item(4, 2, 1)])]);
    let parts = vec![
        base(9, true, vec![slice(2, vec![item(1, 1, 300)]), slice(70_000, vec![])]),
        base(9, false, vec![slice(3, vec![item(7, 1, 1)])]),
        base(1 << 40, false, vec![]),
    ];
    let known =
        |ends: &[u64], bases| KnownPositions { ends: ends.iter().map(|end| (*end).into()).collect(), bases };
    for (name, known) in [
        ("none", known(&[], vec![])),
        ("one", known(&[5], vec![one.clone()])),
        ("parts", known(&[9, 1 << 40], parts.clone())),
        ("several", known(&[5, 9, 1 << 40], [vec![one], parts].concat())),
    ] {
        write("known_positions", name, &known.encode());
    }
}

/// Writes the pack of a capture, and packs whose checksums are corrected by the target: with an entry
/// that is a difference from another object, with an endless length, without the last entry, and with
/// the offset of one file in the place of another one's.
fn write_git_packs() {
    let (index, pack) = sound_pack();
    write("git_packs", "sound", &input_of_pack(&index, &pack));
    for (name, head) in [("difference", &[0x7f][..]), ("endless", &[0xbf; 12])] {
        let mut changed = pack.clone();
        changed[12..12 + head.len()].copy_from_slice(head);
        write("git_packs", name, &input_of_pack(&index, &changed));
    }
    write("git_packs", "cut", &input_of_pack(&index, &pack[..pack.len() - 30]));
    let mut exchanged = index.clone();
    let offsets = index.len() - 40 - 4 * usize::from(pack[11])..index.len() - 40;
    let is_file = |place: &[u8]| pack[u32::from_be_bytes(place.try_into().unwrap()) as usize] >> 4 & 7 == 3;
    let mut files = exchanged[offsets].chunks_exact_mut(4).filter(|place| is_file(place));
    files.next().unwrap().swap_with_slice(files.next().unwrap());
    write("git_packs", "exchanged", &input_of_pack(&exchanged, &pack));
}

/// Rewrites the kept inputs if requested. Inputs that a fuzzer found have other names and stay.
#[test]
fn the_kept_inputs_are_written_anew_where_that_is_asked_for() {
    if std::env::var_os("FOLDLOG_BLESS").is_none() {
        return;
    }
    let golden = golden();
    for (name, frame) in golden.iter().filter(|(name, _)| is_frame(name)) {
        write("record", name, &[&frame[20..21], &frame[HEADER_LEN..]].concat());
    }
    // The golden frames share one context, but do not follow each other.
    for header in ["segment-first", "segment-later"] {
        let frames = golden.iter().filter(|(name, _)| is_frame(name)).flat_map(|(_, frame)| frame);
        let input: Vec<u8> = golden[header].iter().chain(frames).copied().collect();
        write("frames", &format!("golden-{header}"), &input);
    }
    write_segments();
    write_exports();
    write_runs();
    write_transcripts();
    write_chunks();
    write_known_positions();
    write_git_packs();
}
