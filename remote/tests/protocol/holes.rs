//! Shows that readers and claims notice if a place has lost a part of a log that is not its end.

use foldlog_remote::{ChunkReader, Error, GapEnd};

use crate::sim::world::{SESSION, claim, place, run};
use crate::volumes::{append, chunk_key, collected, log, mark_key, read, volume_key};

fn missing(chunk: u64, behind: GapEnd) -> Error {
    Error::Missing { chunk, behind }
}

#[test]
fn a_chunk_that_is_lost_in_front_of_collected_ones_is_no_end_and_nobody_claims_there() {
    run(async {
        let (net, _) = log(14).await;
        // The second range is collected later than the third.
        net.remove(&volume_key(4, 4));
        assert_eq!(collected(&net).await, 8);
        net.remove(&volume_key(4, 4));
        assert_eq!(read(&net).await, (13, Ok(())));
        net.remove(&chunk_key(7));
        let objects = net.objects();
        let volume = missing(7, GapEnd::Volume { first: 8, last: 11 });
        assert_eq!(read(&net).await, (6, Err(volume.clone())));
        assert_eq!(claim(&net, 3).await.unwrap_err(), volume);
        assert_eq!(net.objects(), objects, "nothing was put");
        assert_eq!(
            volume.to_string(),
            "chunk 7 is missing, and no volume contains it, but the volume of chunks 8 to 11 exists: the \
             place has lost acknowledged records; nothing is claimed there"
        );
        // The mark is a sign too, and so is a chunk after the lost part.
        net.remove(&volume_key(4, 8));
        assert_eq!(read(&net).await.1, Err(missing(7, GapEnd::Mark { first: 8, last: 11 })));
        net.remove(&mark_key(8));
        net.set(&chunk_key(8), b"anything".to_vec());
        assert_eq!(read(&net).await.1, Err(missing(7, GapEnd::Chunk { chunk: 8 })));
    });
}

#[test]
fn a_volume_that_is_lost_with_its_mark_is_no_end_and_nobody_claims_there() {
    run(async {
        let (net, _) = log(40).await;
        assert_eq!(collected(&net).await, 40);
        let lost = |first: u64| {
            net.remove(&volume_key(4, first));
            net.remove(&mark_key(first));
        };
        // A large volume contains the chunks. It is only asked for after a small one.
        lost(0);
        let large = missing(0, GapEnd::Volume { first: 0, last: 15 });
        assert_eq!(read(&net).await, (0, Err(large.clone())));
        assert_eq!(claim(&net, 3).await.unwrap_err(), large);
        // The three ranges after it show nothing, but the next large volume does.
        net.remove(&volume_key(16, 0));
        assert_eq!(read(&net).await.1, Err(missing(0, GapEnd::Volume { first: 4, last: 7 })));
        [4, 8, 12].into_iter().for_each(lost);
        assert_eq!(read(&net).await.1, Err(missing(0, GapEnd::Volume { first: 16, last: 19 })));
    });
    run(async {
        // Chunks follow the last collected one.
        let (net, _) = log(10).await;
        assert_eq!(collected(&net).await, 8);
        net.remove(&volume_key(4, 4));
        net.remove(&mark_key(4));
        let chunk = missing(4, GapEnd::Chunk { chunk: 8 });
        assert_eq!(read(&net).await, (3, Err(chunk.clone())));
        assert_eq!(claim(&net, 3).await.unwrap_err(), chunk);
    });
}

#[test]
fn a_volume_gives_back_a_chunk_that_is_lost_behind_an_end_that_was_read() {
    run(async {
        let (net, mut writer) = log(3).await;
        let mut tail = ChunkReader::new(place(&net, 1), SESSION);
        tail.read_to_end(&mut |_| {}).await.unwrap();
        append(&mut writer, 4).await.unwrap();
        // The volume of its range was written after the reader asked for it.
        net.remove(&chunk_key(3));
        let mut read = Vec::new();
        tail.read_to_end(&mut |chunk| read.extend(chunk.records().map(|one| one.sequence.get())))
            .await
            .unwrap();
        assert_eq!(read, [2, 3, 4, 5]);
    });
}
