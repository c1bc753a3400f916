//! The fuzz targets over their kept inputs and over random mutations of these. A fuzzer runs the
//! same functions (`tests/fuzz/`); its findings become kept inputs, and tests here.

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;

use foldlog::RecordKind;
use foldlog::inspect::walk_on;
use foldlog_test_support::crash::{BOOT, Chance, Machine};
use foldlog_tests::fuzz::{Set, TARGETS, Target, mutated};

fn directory(target: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target)
}

fn kept(target: &str) -> BTreeMap<String, Vec<u8>> {
    let files = fs::read_dir(directory(target)).unwrap().map(|file| file.unwrap());
    files.map(|file| (file.file_name().into_string().unwrap(), fs::read(file.path()).unwrap())).collect()
}

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).map_or(default, |value| value.parse().unwrap())
}

fn said(panicked: Box<dyn Any + Send>) -> String {
    let text = panicked.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panicked.downcast_ref::<String>().cloned()).unwrap_or_default()
}

/// Passes an input to a target; a panic reports which input it was.
fn holds((name, target): Target, input: &[u8], which: &str) {
    if let Err(panicked) = catch_unwind(AssertUnwindSafe(|| target(input))) {
        panic!("{name}, {which}: {}\nthe input is b\"{}\"", said(panicked), input.escape_ascii());
    }
}

/// Runs a target over its kept inputs and over random mutations; slow targets get a tenth of the
/// mutations.
fn any_input_holds(name: &str, share: u64) {
    let target = *TARGETS.iter().find(|(known, _)| *known == name).unwrap();
    let kept = kept(name);
    for (file, input) in &kept {
        holds(target, input, file);
    }
    let kept: Vec<Vec<u8>> = kept.into_values().collect();
    let (inputs, first) = (number("FOLDLOG_FUZZ_INPUTS", 4_000) / share, number("FOLDLOG_FUZZ_FIRST", 0));
    for nth in first..first + inputs {
        let input = mutated(&mut Chance::new(nth), &kept);
        holds(target, &input, &format!("FOLDLOG_FUZZ_FIRST={nth}"));
    }
}

#[test]
fn any_object_of_a_place_is_a_chunk_or_a_volume_or_refused() {
    any_input_holds("chunks", 1);
}

#[test]
fn anything_that_says_where_slices_are_known_is_decoded_or_refused() {
    any_input_holds("known_positions", 1);
}

#[test]
fn any_git_pack_restores_the_captured_files_or_none() {
    any_input_holds("git_packs", 20);
}

#[test]
fn any_segment_file_is_scanned() {
    any_input_holds("frames", 1);
}

#[test]
fn any_body_of_any_kind_is_decoded() {
    any_input_holds("record", 1);
}

#[test]
fn any_files_of_a_session_are_opened_audited_followed_and_salvaged() {
    any_input_holds("segments", 10);
}

#[test]
fn any_json_of_a_snapshot_is_read() {
    any_input_holds("snapshot_json", 1);
}

#[test]
fn any_file_of_another_tools_runs_is_read() {
    any_input_holds("import", 10);
}

#[test]
fn any_transcript_is_imported_and_comes_out_again() {
    any_input_holds("claude_code", 10);
}

/// Mutations are only useful if the kept inputs contain every kind of record.
#[test]
fn the_kept_inputs_hold_every_kind_of_record() {
    for (name, _) in TARGETS {
        assert!(kept(name).len() >= 4, "{name}");
    }
    let bodies: BTreeSet<RecordKind> =
        kept("record").values().filter_map(|input| RecordKind::from_byte(*input.first()?)).collect();
    let built: BTreeSet<RecordKind> = RecordKind::ALL.iter().copied().collect();
    assert!(bodies.is_superset(&built), "{bodies:?}");

    let mut in_logs = BTreeSet::new();
    for input in kept("segments").values() {
        let set = Set::of(input);
        let machine = Machine::booted(BOOT);
        for (path, bytes) in &set.files {
            machine.disk.write_file(machine.dir(set.session).join(path), bytes).unwrap();
        }
        let storage = std::sync::Arc::new(machine.disk.clone()) as _;
        // Some inputs are damaged on purpose.
        let _ = walk_on(&storage, &machine.dir(set.session), &mut |frame| {
            in_logs.insert(frame.record.kind);
            Ok(())
        });
    }
    // A seal is no frame of the chain.
    let framed: BTreeSet<RecordKind> = built.into_iter().filter(|kind| *kind != RecordKind::Seal).collect();
    assert!(in_logs.is_superset(&framed), "{in_logs:?}");
}

mod kept_inputs;
