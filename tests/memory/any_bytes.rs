//! The fuzz targets take memory in proportion to their input, whatever it claims.

use std::fs;
use std::hint::black_box;
use std::path::Path;

use foldlog_test_support::crash::Chance;
use foldlog_tests::fuzz::{TARGETS, mutated};

use super::{HEAP, alone};

/// A generous limit for empty input: a disk in memory, a store with a session or two, and the
/// windows through which files are read.
const GROUND_BYTES: usize = 4 << 20;

/// The limit for each byte of input. Each byte is in memory several times: in the disk and its
/// copies, while opening, auditing and salvaging.
const BYTES_OF_ONE: usize = 256;

/// Runs `work` and returns the peak growth of the heap in bytes. The allocator's mark never goes
/// down, so the level is first raised to it by ballast whose pages are never touched.
fn peak(work: impl FnOnce()) -> usize {
    let ballast = black_box(Vec::<u8>::with_capacity(HEAP.max_allocated() - HEAP.allocated()));
    let before = HEAP.allocated();
    work();
    drop(ballast);
    HEAP.max_allocated() - before
}

#[test]
fn no_input_takes_more_memory_than_it_is_worth() {
    let _alone = alone();
    for (name, target) in TARGETS {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(name);
        let files = fs::read_dir(directory).unwrap().map(|file| file.unwrap().path());
        let mut files: Vec<_> = files.collect();
        files.sort();
        let kept: Vec<Vec<u8>> = files.iter().map(|file| fs::read(file).unwrap()).collect();
        let made = (0..200).map(|nth| mutated(&mut Chance::new(nth), &kept));
        let inputs: Vec<Vec<u8>> = kept.iter().cloned().chain(made).collect();
        let mut most = 0;
        for (nth, input) in inputs.iter().enumerate() {
            let bound = GROUND_BYTES + BYTES_OF_ONE * input.len();
            let took = peak(|| target(input));
            assert!(took <= bound, "{name}, input {nth} of {} bytes took {took}, over {bound}", input.len());
            most = most.max(took);
        }
        println!("{name}: {most} bytes at most");
    }
}
