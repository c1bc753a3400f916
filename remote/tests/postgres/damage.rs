//! Shows that rows that are not as they were written are reported.

use foldlog::ObjectId;
use foldlog::replication::{HeldPart, Replicator};
use uuid::Uuid;

use crate::server::{hasty, replicator, retries, schema_of, shared};
use crate::worker::{append, claim, held, reason};

#[test]
fn each_wrong_column_and_each_row_that_is_gone_is_named_by_its_session_and_sequence_number() {
    let Some(server) = shared() else { return };
    let url = server.url();
    let schema = schema_of(&url);
    let one = replicator(&url, "one", retries());
    // The damage to record 2, or to the claim before it, and the reported reason.
    let content = "its content, or an earlier record, differs from what was appended";
    let damages = [
        ("UPDATE {}.records SET body = 'x' WHERE sequence = 2", 2, content),
        ("UPDATE {}.records SET body = set_byte(body, 0, 255) WHERE sequence = 2", 2, content),
        ("UPDATE {}.records SET time_us = time_us + 1 WHERE sequence = 2", 2, content),
        (
            "UPDATE {}.records SET time_us = -9223372036854775808 WHERE sequence = 2",
            2,
            "its time is not valid",
        ),
        ("UPDATE {}.records SET kind = kind + 1 WHERE sequence = 2", 2, content),
        ("UPDATE {}.records SET kind = 300 WHERE sequence = 2", 2, "its kind is not valid"),
        ("UPDATE {}.records SET epoch = 1 WHERE sequence = 2", 2, "its epoch is not that of the claim"),
        ("UPDATE {}.records SET link = sha256('') WHERE sequence = 2", 2, content),
        ("UPDATE {}.records SET link = '' WHERE sequence = 2", 2, content),
        (
            "UPDATE {}.records SET body = decode(repeat('00', 16777217), 'hex') WHERE sequence = 2",
            2,
            "longer",
        ),
        ("DELETE FROM {}.records WHERE sequence = 2", 2, "it is missing"),
        ("DELETE FROM {}.records WHERE sequence = 3", 3, "it is missing"),
        ("UPDATE {}.records SET sequence = sequence + 10 WHERE sequence = 2", 2, "it is missing"),
        (
            "UPDATE {}.records r SET body = o.body FROM {}.records o WHERE r.sequence = 1 AND o.sequence = 2",
            1,
            content,
        ),
        ("DELETE FROM {}.claims WHERE epoch = 1", 0, "its epoch is not that of the claim"),
        ("DELETE FROM {}.claims WHERE epoch = 2", 2, "its epoch is not that of the claim"),
        ("DELETE FROM {}.claims WHERE epoch = 3", 4, "a claim before it is missing"),
        ("UPDATE {}.claims SET name = 'else' WHERE epoch = 2", 2, "the claim before it"),
        ("UPDATE {}.claims SET writer = gen_random_uuid() WHERE epoch = 2", 2, "the claim before it"),
        ("UPDATE {}.claims SET next = 1 WHERE epoch = 2", 1, "the claim before it"),
        ("UPDATE {}.claims SET link = sha256('') WHERE epoch = 2", 2, "the claim before it"),
        ("UPDATE {}.sessions SET next = 3", 3, "a claim before it is missing"),
        ("UPDATE {}.sessions SET next = 5", 4, "it is missing"),
        ("UPDATE {}.sessions SET epoch = 4", 4, "a claim before it is missing"),
        ("UPDATE {}.sessions SET epoch = 2", 4, "the session's row"),
        ("UPDATE {}.sessions SET link = sha256('')", 4, "the session's row"),
        (
            "UPDATE {}.records SET link = sha256('') WHERE sequence = 3; UPDATE {}.sessions SET link = sha256('')",
            3,
            content,
        ),
    ];
    for (place, (damage, sequence, said)) in (1..).zip(damages) {
        let session = Uuid::from_u128(place);
        claim(&one, session).unwrap();
        append(&one, session, 1, 0, &["a", "b"]).unwrap();
        claim(&one, session).unwrap();
        append(&one, session, 2, 2, &["c", "d"]).unwrap();
        claim(&one, session).unwrap();
        assert_eq!(held(&one, session).unwrap().1, ["a", "b", "c", "d"]);
        let only = format!("session = '{session}'");
        let damage: Vec<String> = damage
            .split("; ")
            .map(|one| {
                let one = one.replace("{}", schema);
                let whose =
                    if one.contains(" r SET") { format!("r.{only} AND o.{only}") } else { only.clone() };
                let join = if one.contains("WHERE") { "AND" } else { "WHERE" };
                format!("{one} {join} {whose}")
            })
            .collect();
        server.sql(&damage.join("; "));
        let text = reason(one.read(session, &mut |_| {}));
        let names = format!("record {sequence} of session {session} is damaged in the database: ");
        assert!(text.starts_with(&names) && text.contains(said), "{damage:?}: {text}");
    }
    // No wrong record is handed on before it is verified.
    let session = Uuid::from_u128(1);
    let mut seen = Vec::new();
    let mut see = |part: HeldPart<'_>| {
        if let HeldPart::Record(record) = part {
            seen.push(record.sequence.get());
        }
    };
    one.read(session, &mut see).unwrap_err();
    assert!(seen.iter().all(|sequence| *sequence < 2), "{seen:?}");
}

#[test]
fn a_writer_notices_a_row_behind_the_end() {
    let Some(server) = shared() else { return };
    let (url, session) = (server.url(), Uuid::from_u128(1));
    let schema = schema_of(&url);
    let one = replicator(&url, "one", hasty());
    claim(&one, session).unwrap();
    append(&one, session, 1, 0, &["a"]).unwrap();
    server.sql(&format!(
        "INSERT INTO {schema}.records (session, sequence, epoch, kind, time_us, body, link) \
         SELECT session, 1, epoch, kind, time_us, body, link FROM {schema}.records"
    ));
    let text = reason(append(&one, session, 1, 1, &["b"]));
    assert!(text.contains(&format!("record 1 of session {session}")), "{text}");
    assert!(text.contains("a record already exists"), "{text}");
}

#[test]
fn payloads_come_back_as_they_were_or_not_at_all() {
    let Some(server) = shared() else { return };
    let (url, session) = (server.url(), Uuid::from_u128(1));
    let schema = schema_of(&url);
    let one = replicator(&url, "one", hasty());
    claim(&one, session).unwrap();
    let bytes = b"payload ".repeat(1 << 20);
    let object = ObjectId::from_content(&bytes);
    assert!(reason(one.get_object(session, object)).contains("is missing"));
    one.put_object(session, object, &bytes).unwrap();
    one.put_object(session, object, &bytes).unwrap();
    assert!(one.get_object(session, object).unwrap() == bytes);
    // Each session has its own payloads.
    assert!(reason(one.get_object(Uuid::from_u128(2), object)).contains("is missing"));
    for damage in ["set_byte(bytes, 5, 0)", "''", "bytes || 'x'"] {
        server.sql(&format!("UPDATE {schema}.objects SET bytes = {damage}"));
        let text = reason(one.get_object(session, object));
        assert!(text.contains("do not match its name"), "{text}");
    }
}

#[test]
fn tables_of_a_later_version_are_refused_by_readers_and_by_writers_that_were_there_before() {
    let Some(server) = shared() else { return };
    let (url, session) = (server.url(), Uuid::from_u128(1));
    let schema = schema_of(&url);
    let one = replicator(&url, "one", hasty());
    claim(&one, session).unwrap();
    append(&one, session, 1, 0, &["a"]).unwrap();
    let object = ObjectId::from_content(b"x");
    one.put_object(session, object, b"x").unwrap();
    let (read, two) = (one.read(session, &mut |_| {}).unwrap(), replicator(&url, "two", hasty()));
    claim(&two, session).unwrap();
    server.sql(&format!("UPDATE {schema}.version SET version = 99"));
    for refused in [
        append(&two, session, 2, 1, &["b"]),
        one.claim(session, read.next).map(drop),
        one.read(session, &mut |_| {}).map(drop),
        one.put_object(session, ObjectId::from_content(b"y"), b"y"),
    ] {
        let text = reason(refused);
        assert!(text.contains("version 99, newer than 4"), "{text}");
    }
    assert!(one.sessions().unwrap_err().to_string().contains("version 99"));
    let mut tail = one.tail(session, 0.into()).unwrap();
    assert!(tail.wait().unwrap().unwrap_err().to_string().contains("version 99"));
    server.sql(&format!("UPDATE {schema}.version SET version = 4"));
    assert_eq!(held(&one, session).unwrap().1, ["a"]);
}

#[test]
fn writers_that_come_at_once_make_the_tables_together() {
    let Some(server) = shared() else { return };
    for _ in 0..10 {
        let url = server.url();
        let workers: Vec<_> = (0..8).map(|_| replicator(&url, "one", hasty())).collect();
        let barrier = std::sync::Barrier::new(workers.len());
        std::thread::scope(|scope| {
            let claim = |(worker, session)| {
                let barrier = &barrier;
                scope.spawn(move || {
                    // Connects each worker before the barrier.
                    let held = held(worker, session).unwrap().0;
                    barrier.wait();
                    worker.claim(session, held.next).unwrap()
                })
            };
            let coming: Vec<_> = workers.iter().zip((0..).map(Uuid::from_u128)).map(claim).collect();
            assert!(coming.into_iter().all(|one| one.join().unwrap() == 1));
        });
        assert_eq!(workers[0].sessions().unwrap().len(), 8);
    }
}
