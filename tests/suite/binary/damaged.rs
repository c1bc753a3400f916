//! The verbs' reports of damaged, torn and forged logs.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use foldlog::{RecordKind, Session, SessionOptions, Store, StoreOptions};
use foldlog_codec::body::{
    Action, AddedItems, Binding, BuiltIn, Cause, Declare, Dispatch, Effect, EventDeclaration, Idempotency,
    ItemId, Outcome, Payload, Policy, RemovedItems, Rollback, SessionOpening, SliceDeclaration, ToolBegin,
    ToolEnd,
};
use foldlog_test_support::host::types;
use foldlog_test_support::runs::Json;
use foldlog_tests::forge::Forge;
use foldlog_tests::verbs::{Ran, foldlog};
use uuid::Uuid;

use super::{Fixture, fixture, noted, options, step, write};

pub(super) fn segment(session: &Path) -> PathBuf {
    session.join("0000000000.seg")
}

/// Returns the offset and length of the record's frame.
pub(super) fn place(session: &Path, sequence: u64) -> (u64, u64) {
    let mut place = None;
    foldlog::inspect::walk(session, &mut |frame| {
        if !frame.record.kind.is_envelope() && frame.record.sequence == sequence {
            place = Some((frame.offset, frame.bytes));
        }
        Ok(())
    })
    .unwrap();
    place.unwrap()
}

pub(super) fn flip(path: &Path, offset: u64) {
    let mut bytes = fs::read(path).unwrap();
    bytes[offset as usize] ^= 1;
    fs::write(path, bytes).unwrap();
}

#[test]
fn an_attested_wrong_byte_is_corrupt_and_named() {
    let fixture = fixture();
    let (offset, bytes) = place(&fixture.session, 4);
    flip(&segment(&fixture.session), offset + bytes - 1);
    let ran = fixture.run("verify SESSION --json");
    assert_eq!(ran.code, 1);
    let verified = Json::parse(&ran.stdout);
    let corrupt = verified.get("corrupt").unwrap().elements();
    let number = |field: &str| corrupt[0].get(field).cloned();
    assert_eq!(corrupt.len(), 1);
    assert_eq!(number("offset"), Some(Json::Scalar(offset.into())));
    assert_eq!(number("sequence"), Some(Json::Scalar(4.into())));
    assert_eq!(number("segment"), Some(Json::text(segment(&fixture.session).to_str().unwrap())));
    assert_eq!(number("session"), Some(Json::text(fixture.session.file_name().unwrap().to_str().unwrap())));
    // The fork has linked the same file, so both are named, and every other verb refuses too.
    insta::assert_snapshot!(fixture.transcript(&[
        "verify STORE",
        "sessions STORE",
        "show SESSION",
        "replay SESSION"
    ]));
    for command in ["state SESSION", "diff SESSION 0 1", "export SESSION --format jsonl"] {
        assert_eq!(fixture.run(command).code, 1, "{command}");
    }
}

/// Copies the session's log as a kill would leave it, without attestation, with a wrong byte in its
/// last record. Returns the copy, that record, and its offset and length.
pub(super) fn torn_copy(session: &Session, into: &Path) -> (PathBuf, u64, (u64, u64)) {
    let copy = into.join(session.id().to_string());
    fs::create_dir(&copy).unwrap();
    fs::copy(segment(session.dir()), segment(&copy)).unwrap();
    let last = session.log().position().unwrap();
    let (offset, bytes) = place(&copy, last.get());
    flip(&segment(&copy), offset + bytes - 1);
    (copy, last.get(), (offset, bytes))
}

#[test]
fn a_damaged_end_that_nobody_was_told_of_is_torn_and_holds() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open_with(directory.path(), options()).unwrap();
    let session = write(&store);
    let (copy, last, (offset, bytes)) = torn_copy(&session, directory.path());
    let fixture = Fixture { fork: copy.clone(), session: copy, directory };
    let ran = fixture.run("verify SESSION --json");
    assert_eq!(ran.code, 0, "{}", ran.stdout);
    let verified = Json::parse(&ran.stdout);
    assert_eq!(verified.get("records"), Some(&Json::Scalar(last.into())));
    assert_eq!(verified.get("torn_bytes"), Some(&Json::Scalar(bytes.into())));
    assert_eq!(verified.get("corrupt"), Some(&Json::Array(Vec::new())));
    let torn = &verified.get("torn").unwrap().elements()[0];
    assert_eq!(torn.get("offset"), Some(&Json::Scalar(offset.into())));
    assert_eq!(torn.get("sequence"), Some(&Json::Scalar(last.into())));
    insta::assert_snapshot!(fixture.transcript(&["verify SESSION", "replay SESSION"]));
}

#[test]
fn missing_exchanged_and_foreign_files_are_told_apart() {
    let directory = tempfile::tempdir().unwrap();
    let small = foldlog::log::SegmentSizes { first_bytes: 4096, max_bytes: 4096, ahead_bytes_min: 0 };
    let options = || StoreOptions { segments: small, object_bytes_min: 256, ..options() };
    let store = Store::open_with(directory.path(), options()).unwrap();
    let session = store.create(&types()).unwrap();
    for number in 0..60 {
        session.dispatch(step(&format!("step {number} {}", "x".repeat(100)), number)).unwrap();
    }
    session.dispatch(noted(&"large ".repeat(100))).unwrap();
    let dir = session.dir().to_owned();
    session.close().unwrap();
    let segments = fs::read_dir(&dir).unwrap().filter(|entry| {
        entry.as_ref().unwrap().path().extension().is_some_and(|extension| extension == "seg")
    });
    assert!(segments.count() > 2, "the session has several segments");
    let fixture = Fixture { fork: dir.clone(), session: dir.clone(), directory };
    assert_eq!(fixture.run("verify SESSION").code, 0);

    let named = |ran: &Ran, field: &str| {
        assert_eq!(ran.code, 1, "{}{}", ran.stdout, ran.stderr);
        let verified = Json::parse(&ran.stdout);
        verified.get("corrupt").unwrap().elements()[0].get(field).cloned().unwrap()
    };
    // A missing segment.
    let (second, aside) = (dir.join("0000000001.seg"), fixture.directory.path().join("aside"));
    fs::rename(&second, &aside).unwrap();
    let ran = fixture.run("verify SESSION --json");
    assert_eq!(named(&ran, "segment"), Json::text(second.to_str().unwrap()));
    assert_eq!(fixture.run("show SESSION").code, 1);
    // Another segment in its place.
    fs::copy(segment(&dir), &second).unwrap();
    let ran = fixture.run("verify SESSION --json");
    assert_eq!(named(&ran, "segment"), Json::text(second.to_str().unwrap()));
    fs::rename(&aside, &second).unwrap();
    // An object whose content does not match its name.
    let objects: Vec<PathBuf> =
        fs::read_dir(dir.join("objects")).unwrap().map(|entry| entry.unwrap().path()).collect();
    flip(&objects[0], 20);
    let ran = fixture.run("verify SESSION --json");
    let sequence = named(&ran, "sequence");
    flip(&objects[0], 20);
    let shown = fixture.run("show SESSION --kind dispatch --json").stdout;
    let last = shown.lines().last().unwrap();
    assert!(last.contains("$object"), "{last}");
    assert_eq!(Some(&sequence), Json::parse(last).get("sequence"));
    // A header with a wrong checksum, before valid records.
    flip(&segment(&dir), 10);
    assert_eq!(fixture.run("verify SESSION").code, 1);
    flip(&segment(&dir), 10);
    // A session under another session's id.
    let other = dir.with_file_name(Uuid::from_u128(5).to_string());
    fs::rename(&dir, &other).unwrap();
    let fixture = Fixture { fork: other.clone(), session: other.clone(), ..fixture };
    let ran = fixture.run("verify SESSION --json");
    assert_eq!(named(&ran, "session"), Json::text(Uuid::from_u128(5).to_string()));
    // A later format.
    let mut bytes = fs::read(segment(&other)).unwrap();
    // Its version, and the length of its header.
    bytes[8..12].copy_from_slice(&[2, 0, 200, 0]);
    fs::write(segment(&other), bytes).unwrap();
    let ran = fixture.run("verify STORE");
    assert_eq!(ran.code, 2, "{}{}", ran.stdout, ran.stderr);
}

#[test]
fn what_a_crash_leaves_of_a_session_that_nobody_knows_is_passed_over() {
    let fixture = fixture();
    let begun = fixture.directory.path().join("sessions").join(Uuid::from_u128(6).to_string());
    fs::create_dir(&begun).unwrap();
    assert_eq!(fixture.run("verify STORE").code, 0);
    fs::write(segment(&begun), [0; 16 << 10]).unwrap();
    let ran = fixture.run("verify STORE");
    assert_eq!(ran.code, 0, "{}{}", ran.stdout, ran.stderr);
    assert!(ran.stderr.contains("is skipped"), "{}", ran.stderr);
    // The listing reported it as an error, and then `verify` reported the store as valid.
    let listed = fixture.run("sessions STORE");
    assert_eq!(listed.code, 0, "{}{}", listed.stdout, listed.stderr);
    assert!(listed.stderr.contains("is skipped"), "{}", listed.stderr);
    // A command that names the directory fails: it is no session.
    assert_eq!(foldlog(["verify".as_ref(), begun.as_os_str()]).code, 2);

    // A session that ended right before its first record was reported as damaged.
    fs::remove_dir_all(&begun).unwrap();
    let begin = || {
        let id = Some(Uuid::from_u128(6));
        let store = Store::open_with(fixture.directory.path(), options()).unwrap();
        store.create_with(&types(), SessionOptions { id, ..SessionOptions::default() })
    };
    begin().unwrap().close().unwrap();
    let (first_record, _) = place(&begun, 0);
    let file = fs::File::options().write(true).open(segment(&begun)).unwrap();
    file.set_len(first_record).unwrap();
    file.set_len(16 << 10).unwrap();
    let ran = fixture.run("verify STORE");
    assert_eq!(ran.code, 0, "{}{}", ran.stdout, ran.stderr);
    assert!(ran.stderr.contains("is skipped"), "{}", ran.stderr);
    assert_eq!(foldlog(["verify".as_ref(), begun.as_os_str()]).code, 2);
    // Created again it is a normal session, whatever else is in its directory.
    begin().unwrap().close().unwrap();
    assert!(begun.join("0000000001.seg").exists());
    let ran = fixture.run("verify STORE");
    assert_eq!((ran.code, ran.stderr.contains("is skipped")), (0, false), "{}{}", ran.stdout, ran.stderr);
    assert_eq!(foldlog(["verify".as_ref(), begun.as_os_str()]).code, 0);
}

/// A session whose only segment file was removed was skipped, and the store was reported as valid.
#[test]
fn a_session_that_has_lost_its_segments_is_damaged_and_named() {
    let fixture = fixture();
    let (lost, id) = (&fixture.session, fixture.session.file_name().unwrap().to_str().unwrap());
    // The fork does not share any file by name, so it remains readable.
    fs::remove_dir_all(lost).unwrap();
    let is_lost = |left: &str| {
        let said = format!(
            "its segments are missing: it contains `{left}`, which exist only if records were \
             written"
        );
        let verified = fixture.run("verify STORE");
        assert_eq!(verified.code, 1, "{left}: {}{}", verified.stdout, verified.stderr);
        assert!(
            verified.stdout.contains(&said) && !verified.stdout.contains("holds\n"),
            "{}",
            verified.stdout
        );
        let alone = fixture.run("verify SESSION");
        assert!(alone.code == 1 && alone.stdout.contains(&said), "{}{}", alone.stdout, alone.stderr);
        let listed = fixture.run("sessions STORE");
        assert_eq!((listed.code, listed.stdout.lines().count()), (1, 3), "{}", listed.stdout);
        let row = listed.stdout.lines().find(|line| line.starts_with(id)).unwrap();
        assert!(row.contains(&said), "{row}");
    };
    for (left, file) in [
        ("recovery.spare", "recovery.spare"),
        ("objects", "objects/of"),
        ("snapshots", "snapshots/00000000000000000004.image"),
        ("files", "files/objects/of"),
    ] {
        fs::create_dir_all(lost.join(file).parent().unwrap()).unwrap();
        fs::write(lost.join(file), "left").unwrap();
        is_lost(left);
        fs::remove_dir_all(lost).unwrap();
    }

    // A directory without any evidence of a session is named, and the others are reported as valid.
    fs::create_dir(lost).unwrap();
    fs::write(lost.join("notes"), "of somebody").unwrap();
    let word = fixture.directory.path().join(format!("writers/{id}.json"));
    fs::write(&word, "{}").unwrap();
    let verified = fixture.run("verify STORE");
    assert_eq!(verified.code, 0, "{}", verified.stderr);
    assert!(verified.stdout.ends_with("of these sessions is intact\n"), "{}", verified.stdout);
    for left in [&lost.join("notes"), &word] {
        assert!(verified.stderr.contains(left.to_str().unwrap()), "{}", verified.stderr);
    }
    fs::remove_dir_all(&fixture.fork).unwrap();
    let verified = fixture.run("verify STORE");
    assert!(verified.code == 0 && verified.stdout.contains("nothing was checked"), "{}", verified.stdout);
}

/// Writes a log of these records in intact frames, whatever their content.
pub(super) fn forge(dir: &Path, records: &[(RecordKind, Vec<u8>)]) {
    let (mut forge, mut bytes) = (Forge::default(), Forge::head());
    for (kind, body) in records {
        bytes.extend(forge.frame(*kind, body));
    }
    bytes.resize(bytes.len() + 256, 0);
    fs::create_dir_all(dir).unwrap();
    // As for a session's directory: only its owner may read it.
    fs::set_permissions(dir, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
    fs::write(segment(dir), bytes).unwrap();
}

/// Creates a session that appends to a LOG slice and a STATE slice, and then writes the given
/// record.
pub(super) fn forged(kind: RecordKind, body: Vec<u8>) -> Fixture {
    let directory = tempfile::tempdir().unwrap();
    let dir = directory.path().join("sessions").join(Uuid::from_u128(9).to_string());
    let opened =
        SessionOpening { session: Uuid::from_u128(9), seed: 1, tags: BTreeMap::new(), parent: None }.encode();
    let slice = |id, name: &str, policy| SliceDeclaration {
        id,
        name: name.to_owned(),
        policy,
        item: "said".to_owned(),
    };
    let declare = Declare {
        events: vec![EventDeclaration {
            id: 0,
            name: "said".to_owned(),
            version: 1,
            bindings: (0..2).map(|slice| Binding { slice, built_in: BuiltIn::Append }).collect(),
            implicit: false,
        }],
        slices: vec![slice(0, "heard", Policy::Log), slice(1, "known", Policy::State)],
    };
    let said = |text: &str| {
        let data = foldlog::Value::from(text).encode();
        let action = Action::Event { event: 0, data: Payload::new(&data) };
        (RecordKind::Dispatch, Dispatch { action, effects: None }.encode())
    };
    let records = [
        (RecordKind::Opened, opened),
        (RecordKind::Declare, declare.encode()),
        said("a"),
        said("b"),
        (kind, body),
    ];
    forge(&dir, &records);
    Fixture { fork: dir.clone(), session: dir, directory }
}

#[test]
fn a_log_that_shrinks_diverges_and_says_where() {
    let fixture = forged(RecordKind::Rollback, Rollback { to: 2.into(), preserve_logs: false }.encode());
    // Every frame and body is intact; only the fold shows that LOG went back.
    insta::assert_snapshot!(fixture.transcript(&["verify STORE", "replay SESSION", "replay SESSION --json"]));
}

#[test]
fn records_that_contradict_the_log_are_corrupt() {
    let fixture = forged(RecordKind::Rollback, Rollback { to: 7.into(), preserve_logs: true }.encode());
    assert_eq!(fixture.run("verify SESSION").code, 1);
    assert_eq!(fixture.run("replay SESSION").code, 1);
    let removed = RemovedItems::Items(vec![ItemId { sequence: 77.into(), ordinal: 0 }]);
    let added = AddedItems::Items { items: Vec::new(), version: 1 };
    let effects = Some(vec![Effect { slice: 1, removed, added, before: None }]);
    let fixture = forged(RecordKind::Dispatch, Dispatch { action: Action::Clear, effects }.encode());
    insta::assert_snapshot!(fixture.transcript(&["verify STORE", "show SESSION"]));
    // A body that is no map is found before the fold.
    let fixture = forged(RecordKind::Dispatch, vec![0xc1]);
    let ran = fixture.run("verify SESSION --json");
    assert_eq!(ran.code, 1);
    let verified = Json::parse(&ran.stdout);
    assert_eq!(verified.get("corrupt").unwrap().elements()[0].get("sequence"), Some(&Json::Scalar(4.into())));
    // The declarations at the head of a segment are not folded, so only a check of every body finds
    // this.
    let fixture = forged(RecordKind::Declared, vec![0xc1]);
    assert_eq!(fixture.run("replay SESSION").code, 0);
    assert_eq!(fixture.run("verify SESSION").code, 1);
}

#[test]
fn kinds_of_a_later_version_are_shown_as_they_are() {
    let fixture = forged(RecordKind::from_byte(99).unwrap(), foldlog::Value::from("later").encode());
    insta::assert_snapshot!(fixture.transcript(&[
        "verify STORE",
        "replay SESSION",
        "show SESSION --from 4 --json"
    ]));
}

/// A later version may end a call, and allow another run, in ways that this version does not know.
/// Readers see the names in the record; writers are refused, since the call might not be allowed to
/// run again.
#[test]
fn a_call_that_ended_as_only_a_later_version_knows_is_shown_and_not_written_behind() {
    let arguments = foldlog::Value::from("{}").encode();
    let begin = ToolBegin {
        idempotency: Idempotency::from_recorded("once").unwrap(),
        ..ToolBegin::new("send_mail", Payload::new(&arguments))
    };
    let end = ToolEnd {
        cause: Cause::from_recorded("asks\u{1b}[31m"),
        rolls_back: true,
        slice: 0,
        ..ToolEnd::new(2.into(), "send_mail", Outcome::from_recorded("handed_over").unwrap())
    };
    let directory = tempfile::tempdir().unwrap();
    let session = directory.path().join("sessions").join(Uuid::from_u128(9).to_string());
    let opened = SessionOpening { session: Uuid::from_u128(9), seed: 1, tags: BTreeMap::new(), parent: None };
    let invoked = SliceDeclaration {
        id: 0,
        name: "tool_invoked".to_owned(),
        policy: Policy::Log,
        item: "tool_invoked".to_owned(),
    };
    let declare = Declare { events: Vec::new(), slices: vec![invoked] };
    forge(
        &session,
        &[
            (RecordKind::Opened, opened.encode()),
            (RecordKind::Declare, declare.encode()),
            (RecordKind::ToolBegin, begin.encode()),
            (RecordKind::ToolEnd, end.encode()),
        ],
    );
    let run = |verb: &str| {
        let ran = foldlog([verb.into(), session.clone().into_os_string()]);
        assert!(!ran.stdout.contains('\u{1b}') && !ran.stderr.contains('\u{1b}'), "{ran:?}");
        ran
    };
    let shown = run("show");
    assert!(shown.stdout.contains("send_mail of 2 handed_over: asks"), "{shown:?}");
    assert!(
        shown
            .stderr
            .contains("record 3 is of kind tool_end, which this version of foldlog lists but cannot fold")
    );
    let ledger = run("ledger");
    assert!(ledger.stdout.contains(r"unknown: asks\u{1b}[31m"), "{ledger:?}");
    assert!(ledger.stdout.contains("1 operation: 1 unknown"), "{ledger:?}");
    for verb in ["state", "verify", "stats"] {
        assert_eq!(run(verb).code, 0, "{verb}");
    }
    let opened = Store::open(directory.path()).unwrap().open_session(Uuid::from_u128(9), &types()).unwrap();
    let refused = opened.set_tag("team", "blue");
    assert!(
        matches!(&refused, Err(foldlog::Error::UnsupportedKind { sequence, kind }) if *sequence == 3 && *kind == RecordKind::ToolEnd),
        "{refused:?}"
    );
}
