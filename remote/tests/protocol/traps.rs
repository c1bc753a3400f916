//! Shows that no answer of a store is misread, with one test for each trap.

use std::sync::Arc;
use std::time::Duration;

use foldlog_remote::chunk::{ChunkEncoder, ChunkHash, ChunkHead, Epoch};
use foldlog_remote::{Bucket, ChunkReader, ChunkWriter, Error, RemoteFailure, SessionWriter};
use futures_lite::future;

use crate::sim::world::{SESSION, bucket, record, retries, run};
use crate::sim::{Fault, Net, SECRET, oracle};

async fn claim(net: &Arc<Net>, client: usize) -> Result<ChunkWriter, Error> {
    ChunkWriter::claim(ChunkReader::new(bucket(net, client), SESSION), "a writer", &mut |_| {}).await
}

fn key(number: u64) -> String {
    format!("team/agents/sessions/{SESSION}/log/{number:020}")
}

fn bodies(net: &Net) -> Vec<Vec<u8>> {
    oracle::history(&net.objects()).into_iter().flat_map(|chunk| chunk.bodies).collect()
}

#[test]
fn a_put_whose_answer_was_lost_is_known_again_by_its_nonce() {
    for fault in [Fault::AnswerLost, Fault::Reset, Fault::FailedButDone] {
        run(async {
            let net = Net::new(1, 0);
            let mut writer = claim(&net, 0).await.unwrap();
            net.script(&[fault]);
            assert_eq!(writer.append([record(0, b"once")]).await.unwrap(), 1, "{fault:?}");
            // The bytes that were read back are the proof: nothing was put again.
            assert_eq!(net.puts(), 2);
            assert_eq!(writer.append([record(1, b"twice")]).await.unwrap(), 2);
            assert_eq!(bodies(&net), [b"once".to_vec(), b"twice".to_vec()]);
        });
    }
}

#[test]
fn the_same_records_of_another_writer_are_not_taken_for_ones_own() {
    run(async {
        let net = Net::new(1, 0);
        let mut first = claim(&net, 0).await.unwrap();
        // The answer is lost. When the writer looks again, another one has claimed and put the same
        // record.
        net.script(&[Fault::RequestLost]);
        let mut second = None;
        let lost = tokio::time::timeout(Duration::from_millis(300), first.append([record(0, b"same")])).await;
        assert!(lost.is_err());
        let writer = second.insert(claim(&net, 1).await.unwrap());
        writer.append([record(0, b"same")]).await.unwrap();
        let fenced = first.settle().await.unwrap_err();
        let expected = Error::Fenced { epoch: Epoch::new(2), by: writer.id(), note: "a writer".to_owned() };
        assert_eq!(fenced, expected);
        assert_eq!(bodies(&net), [b"same".to_vec()]);
    });
}

#[test]
fn already_exists_that_means_try_again_fences_nobody() {
    run(async {
        let net = Net::new(1, 0);
        let mut writer = claim(&net, 0).await.unwrap();
        net.script(&[Fault::Conflict, Fault::Conflict]);
        assert_eq!(writer.append([record(0, b"body")]).await.unwrap(), 1);
        // If the store gives no other answer, the outcome is unknown, and no other writer is
        // blamed.
        net.script(&[Fault::Conflict; 4]);
        let unknown = writer.append([record(1, b"more")]).await.unwrap_err();
        assert_eq!(
            unknown,
            Error::Unknown { next: 2.into(), failure: RemoteFailure::Conflict, details: Box::default() }
        );
        assert_eq!(writer.settle().await.unwrap(), 2);
        assert_eq!(bodies(&net).len(), 2);
    });
}

#[test]
fn credentials_that_expire_in_the_middle_lose_nothing_and_fence_nobody() {
    run(async {
        let net = Net::new(1, 0);
        let mut writer = claim(&net, 0).await.unwrap();
        writer.append([record(0, b"before")]).await.unwrap();
        net.script(&[Fault::Denied; 8]);
        let denied = writer.append([record(1, b"while")]).await.unwrap_err();
        assert_eq!(
            denied,
            Error::Unknown { next: 2.into(), failure: RemoteFailure::Denied, details: Box::default() }
        );
        assert!(writer.is_in_doubt());
        assert_eq!((writer.acknowledged_sequence().get(), writer.next_sequence().get()), (1, 2));
        // A later record is not put before one in doubt.
        let denied = writer.append([record(2, b"after")]).await.unwrap_err();
        assert_eq!(
            denied,
            Error::Unknown { next: 2.into(), failure: RemoteFailure::Denied, details: Box::default() }
        );
        // With new credentials the writer continues.
        assert_eq!(writer.append([record(2, b"after")]).await.unwrap(), 3);
        assert_eq!(bodies(&net), [b"before".to_vec(), b"while".to_vec(), b"after".to_vec()]);
    });
}

#[test]
fn a_put_that_arrives_after_everybody_gave_up_is_found_by_the_next_writer_or_refused() {
    run(async {
        let net = Net::new(1, 0);
        let mut first = claim(&net, 0).await.unwrap();
        net.script(&[Fault::Late, Fault::RequestLost, Fault::RequestLost, Fault::RequestLost]);
        let unknown = first.append([record(0, b"late")]).await.unwrap_err();
        assert_eq!(
            unknown,
            Error::Unknown { next: 1.into(), failure: RemoteFailure::TimedOut, details: Box::default() }
        );
        drop(first);
        // The put arrives after the claim, whose number it wanted.
        let mut second = claim(&net, 1).await.unwrap();
        tokio::time::sleep(Duration::from_secs(200)).await;
        second.append([record(0, b"mine")]).await.unwrap();
        assert_eq!(bodies(&net), [b"mine".to_vec()]);
    });
    run(async {
        let net = Net::new(1, 0);
        let mut first = claim(&net, 0).await.unwrap();
        net.script(&[Fault::Late, Fault::RequestLost, Fault::RequestLost, Fault::RequestLost]);
        first.append([record(0, b"late")]).await.unwrap_err();
        // The put arrives before the claim, which then follows it.
        tokio::time::sleep(Duration::from_secs(200)).await;
        let mut read = Vec::new();
        let reader = ChunkReader::new(bucket(&net, 1), SESSION);
        let mut each = |chunk: &foldlog_remote::chunk::Chunk<'_>| {
            read.extend(chunk.records().map(|one| one.body.to_vec()));
        };
        let mut second = ChunkWriter::claim(reader, "a writer", &mut each).await.unwrap();
        second.append([record(1, b"mine")]).await.unwrap();
        assert_eq!(read, [b"late".to_vec()]);
        assert_eq!(bodies(&net), [b"late".to_vec(), b"mine".to_vec()]);
        // The first writer learns both: its record is stored, and it is fenced.
        assert_eq!(first.settle().await.unwrap(), 1);
        assert!(matches!(first.append([record(1, b"no")]).await, Err(Error::Fenced { .. })));
    });
}

#[test]
fn a_paused_writer_that_wakes_up_behind_a_takeover_is_fenced() {
    run(async {
        let net = Net::new(1, 0);
        let mut first = claim(&net, 0).await.unwrap();
        first.append([record(0, b"begin")]).await.unwrap();
        tokio::time::sleep(Duration::from_secs(1_000)).await;
        let mut second = claim(&net, 1).await.unwrap();
        second.append([record(1, b"on")]).await.unwrap();
        let puts = net.puts();
        for _ in 0..3 {
            let fenced = first.append([record(1, b"another begin")]).await.unwrap_err();
            assert!(
                matches!(fenced, Error::Fenced { epoch, by, .. } if epoch.get() == 2 && by == second.id())
            );
        }
        // It asked once, and never again.
        assert_eq!(net.puts(), puts + 1);
        assert_eq!(bodies(&net), [b"begin".to_vec(), b"on".to_vec()]);
    });
}

#[test]
fn an_append_that_is_dropped_in_the_middle_is_settled_before_the_next() {
    run(async {
        let net = Net::new(1, 0);
        let mut writer = claim(&net, 0).await.unwrap();
        {
            let append = std::pin::pin!(writer.append([record(0, b"dropped")]));
            assert!(future::poll_once(append).await.is_none());
        }
        assert!(writer.is_in_doubt());
        assert_eq!(writer.next_sequence(), 1);
        assert_eq!(writer.append([record(1, b"next")]).await.unwrap(), 2);
        assert_eq!(bodies(&net), [b"dropped".to_vec(), b"next".to_vec()]);
    });
}

#[test]
fn two_copies_of_one_writer_do_not_both_append() {
    // If a machine is restored from an image, or a process forks, one writer exists twice, with the
    // same id and epoch.
    run(async {
        let net = Net::new(1, 0);
        let mut writer = claim(&net, 0).await.unwrap();
        let chain = *writer.chain();
        let (last, hash) = chain.last().unwrap();
        let head = ChunkHead {
            session: SESSION,
            number: last + 1,
            epoch: writer.epoch(),
            writer: writer.id(),
            nonce: [1; 16],
            previous: hash,
            first_sequence: 0.into(),
            note: String::new(),
        };
        let mut copy = ChunkEncoder::new(head).unwrap();
        copy.push(record(0, b"body")).unwrap();
        net.set(&key(1), copy.finish().bytes);
        let fenced = writer.append([record(0, b"body")]).await.unwrap_err();
        assert!(matches!(fenced, Error::Fenced { by, .. } if by == writer.id()), "{fenced}");
    });
}

#[test]
fn a_chunk_of_a_superseded_writer_behind_the_claim_is_ignored() {
    run(async {
        let net = Net::new(1, 0);
        let first = claim(&net, 0).await.unwrap();
        let mut second = claim(&net, 1).await.unwrap();
        let head = ChunkHead {
            session: SESSION,
            number: 2,
            epoch: first.epoch(),
            writer: first.id(),
            nonce: [1; 16],
            previous: ChunkHash([3; 32]),
            first_sequence: 0.into(),
            note: String::new(),
        };
        let mut stray = ChunkEncoder::new(head).unwrap();
        stray.push(record(0, b"stray")).unwrap();
        net.set(&key(2), stray.finish().bytes);
        // The writer skips the taken number, and so does a reader.
        assert_eq!(second.append([record(0, b"body")]).await.unwrap(), 1);
        assert_eq!(oracle::see(&net.objects()[&key(3)]).bodies, [b"body".to_vec()]);
        let mut reader = ChunkReader::new(bucket(&net, 2), SESSION);
        let mut read = Vec::new();
        reader
            .read_to_end(&mut |chunk| read.extend(chunk.records().map(|one| one.body.to_vec())))
            .await
            .unwrap();
        assert_eq!((read, reader.ignored_count()), (vec![b"body".to_vec()], 1));
        let third = claim(&net, 3).await.unwrap();
        assert_eq!(third.epoch().get(), 3);
    });
}

#[test]
fn a_store_without_conditional_puts_is_refused_on_opening() {
    run(async {
        let net = Net::new(1, 0);
        bucket(&net, 0).require_conditional_puts(SESSION).await.unwrap();
        assert!(net.objects().is_empty(), "the probe is removed");
        net.without_conditions();
        let refused = bucket(&net, 0).require_conditional_puts(SESSION).await.unwrap_err();
        assert_eq!(refused, Error::NoConditionalPuts);
        assert!(net.objects().is_empty());
    });
    // If answers are lost, the verdict is correct or absent.
    for seed in 0..400 {
        run(async {
            let net = Net::new(seed, 300);
            match bucket(&net, 0).require_conditional_puts(SESSION).await {
                Ok(()) | Err(Error::Store { .. }) => {}
                Err(error) => panic!("seed {seed}: {error}"),
            }
            net.without_conditions();
            let refused = bucket(&net, 0).require_conditional_puts(SESSION).await;
            assert!(
                matches!(refused, Err(Error::NoConditionalPuts | Error::Store { .. })),
                "seed {seed}: {refused:?}"
            );
        });
    }
}

#[test]
fn no_text_holds_what_a_store_says() {
    run(async {
        let net = Net::new(1, 0);
        let mut writer = claim(&net, 0).await.unwrap();
        let mut texts = vec![format!("{writer:?}"), format!("{:?}", bucket(&net, 0))];
        for fault in [Fault::Denied, Fault::Busy, Fault::Conflict, Fault::Reset] {
            net.script(&[fault; 4]);
            let error = claim(&net, 1).await.err().or(writer.append([record(0, b"x")]).await.err());
            texts.extend(error.map(|error| format!("{error} {error:?}")));
        }
        let hostile = Bucket::new(net.client(0), "a//b\u{1b}[31m", retries()).unwrap_err();
        texts.push(hostile.to_string());
        assert!(texts.len() >= 5, "{texts:?}");
        for text in texts {
            assert!(!text.contains(SECRET) && !text.contains(char::is_control), "{text}");
        }
    });
}

#[test]
fn what_a_claim_says_is_shown_escaped_and_bounded() {
    run(async {
        let net = Net::new(1, 0);
        let mut first = claim(&net, 0).await.unwrap();
        let reader = ChunkReader::new(bucket(&net, 1), SESSION);
        ChunkWriter::claim(reader, "me\u{1b}[31m\n", &mut |_| {}).await.unwrap();
        let fenced = first.append([record(0, b"x")]).await.unwrap_err();
        assert!(fenced.to_string().contains(r"(`me\u{1b}[31m\n`)"), "{fenced}");
        let reader = ChunkReader::new(bucket(&net, 1), SESSION);
        let long = ChunkWriter::claim(reader, &"m".repeat(1025), &mut |_| {}).await.unwrap_err();
        assert_eq!(long, Error::TooLarge { what: "note", len: 1025, max: 1024 });
    });
}
