//! Histories of messages: at every position they equal the conversation there, and keep only one
//! message in memory.

use std::sync::Arc;

use foldlog::conversation::{NewInput, Role};
use foldlog::inspect::{LogReader, MessagesChange, ReadOptions, RecordedMessage};
use foldlog::storage::FileStorage;
use foldlog::{Error, SequenceNumber};
use foldlog_test_support::host::types;
use foldlog_tests::shown;

/// Compares a session's histories with its conversations, and returns the number of messages.
fn check(reader: &LogReader) -> usize {
    let mut count = 0;
    for evaluation in reader.evaluations_through(reader.last_position()) {
        let mut messages: Vec<RecordedMessage> = Vec::new();
        let read = reader.message_history(&evaluation, |message| {
            messages.push(message);
            Ok(())
        });
        let history = read.unwrap().unwrap();
        let sequences: Vec<SequenceNumber> = messages.iter().map(|message| message.sequence).collect();
        assert_eq!(history.sequences().collect::<Vec<_>>(), sequences);
        let mut changes: Vec<(SequenceNumber, Vec<usize>)> = Vec::new();
        history.changes(|position, change| {
            let mut now = changes.last().map(|(_, now)| now.clone()).unwrap_or_default();
            match change {
                MessagesChange::Appended(number) => now.push(number),
                MessagesChange::Now(numbers) => now = numbers.to_vec(),
            }
            changes.push((position, now));
        });
        for position in 0..=reader.last_position().get() {
            let counting = changes.iter().rfind(|(changed, _)| changed.get() <= position);
            let told: Vec<_> = counting
                .map(|(_, now)| now.iter().map(|number| messages[*number].clone()).collect())
                .unwrap_or_default();
            let read = reader.conversation_at(&evaluation, position).unwrap();
            let read = read.map(|conversation| conversation.recorded_messages()).unwrap_or_default();
            let told: Vec<_> = told.into_iter().map(|told| (told.sequence, told.message)).collect();
            assert_eq!(told, read, "`{evaluation}` at {position}");
        }
        count += messages.len();
    }
    count
}

#[test]
fn at_every_position_a_history_has_the_messages_of_the_conversation() {
    let directory = tempfile::tempdir().unwrap();
    let store = shown::store(directory.path());
    for dir in [shown::history(&store, 250, 11), shown::work(&store).1, shown::spending(&store)] {
        let reader = LogReader::open(&dir).unwrap();
        assert!(check(&reader) > 4, "{}", dir.display());
        assert!(reader.message_history("nobody's", |_| Ok(())).unwrap().is_none());
    }
}

#[test]
fn a_history_may_be_larger_than_memory_and_one_message_may_not() {
    let directory = tempfile::tempdir().unwrap();
    let session = shown::store(directory.path()).create(&types()).unwrap();
    let say = |evaluation: &str, length: usize| {
        session
            .conversation()
            .record_input(&NewInput::new(evaluation, Role::User, "x".repeat(length)))
            .unwrap();
    };
    (0..50).for_each(|_| say("long", 40_000));
    say("huge", 700_000);
    let dir = session.dir().to_owned();
    session.close().unwrap();
    let options = ReadOptions { memory_bytes: Some(600_000), ..ReadOptions::default() };
    let reader = LogReader::open_with(Arc::new(FileStorage::new()), &dir, options).unwrap();
    let last = reader.last_position();
    assert!(matches!(reader.conversation_at("long", last), Err(Error::OverBudget { .. })));
    let mut bytes = 0;
    let history = reader.message_history("long", |message| {
        bytes += message.message.content.unwrap().len();
        Ok(())
    });
    assert_eq!((history.unwrap().unwrap().sequences().len(), bytes), (50, 50 * 40_000));
    assert!(matches!(reader.message_history("huge", |_| Ok(())), Err(Error::OverBudget { .. })));
    // The receiver of the messages may end the reading.
    let mut taken = 0;
    let ended = reader.message_history("long", |message| {
        taken += 1;
        Err(Error::NoSuchPosition { position: message.sequence, last: None })
    });
    assert!(matches!(ended, Err(Error::NoSuchPosition { .. })));
    assert_eq!(taken, 1);
}
