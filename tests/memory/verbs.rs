//! Memory limits of the binary's verbs, over logs that demand as much memory as they can.
//!
//! Each verb runs in its own process with a limited address space, and prints the peak of its heap
//! at the end.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use foldlog::{RecordKind, Value};
use foldlog_codec::body::{
    Action, AddedItems, AnswerBody, ConversationScope, Declare, Dispatch, Effect, ExternalEffects,
    Idempotency, Input, ObjectId, Outcome, Payload, Policy, RemovedItems, Role, Rollback, SliceDeclaration,
    ToolBegin, ToolEnd,
};
use foldlog_tests::forge;

use super::{HEAP, together};

/// The variable with the arguments of the verb that a child runs, one per line.
const VERB: &str = "FOLDLOG_TEST_MEMORY_VERB";

/// The start of the child's last line on standard error.
const PEAK: &str = "peak heap: ";

/// The process's own mappings, its threads' stacks, and unused reservations of the allocator.
const ADDRESS_SPACE_BESIDE: u64 = 1 << 30;

/// The limit of a reader in addition to three times the requested bytes.
const BOUND: u64 = 64 << 20;

/// The child: runs one verb, with the process's own streams, and ends.
#[test]
fn part_of_a_child_that_runs_a_verb() {
    let Ok(verb) = std::env::var(VERB) else { return };
    let before = HEAP.allocated();
    let code = foldlog_cli::output::with_process(|output| {
        let arguments = std::iter::once("foldlog").chain(verb.lines()).map(Into::into);
        foldlog_cli::run(arguments, output)
    });
    eprintln!("{PEAK}{}", HEAP.max_allocated().saturating_sub(before));
    std::process::exit(code.into());
}

struct Ran {
    code: i32,
    /// The peak of its heap.
    peak: u64,
    stderr: String,
    stdout_bytes: u64,
    stdout: String,
}

/// Runs a verb in a process with a limited address space, and reads at most this many bytes of its
/// results.
fn run(words: &[&str], address_space: u64, read_max: u64) -> Ran {
    let script = format!("ulimit -v {}; exec \"$0\" \"$@\"", address_space >> 10);
    let mut command = Command::new("sh");
    command.args(["-c", &script]).arg(std::env::current_exe().unwrap());
    command.args(["--exact", "verbs::part_of_a_child_that_runs_a_verb", "--nocapture", "--test-threads=1"]);
    command.env(VERB, words.join("\n")).env("RUST_BACKTRACE", "0");
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut stdout = child.stdout.take().unwrap();
    let reading = std::thread::spawn(move || {
        let (mut bytes, mut start) = (0, Vec::new());
        let mut buffer = vec![0; 1 << 16];
        // Closing the pipe early is no error for the verb.
        while bytes < read_max {
            let read = std::io::Read::read(&mut stdout, &mut buffer).unwrap();
            if read == 0 {
                break;
            }
            bytes += read as u64;
            if start.len() < 1 << 16 {
                start.extend_from_slice(&buffer[..read]);
            }
        }
        (bytes, String::from_utf8_lossy(&start).into_owned())
    });
    let output = child.wait_with_output().unwrap();
    let (stdout_bytes, stdout) = reading.join().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    let peak = stderr.lines().find_map(|line| line.strip_prefix(PEAK)?.parse().ok());
    let code = output.status.code().unwrap_or(-1);
    Ran { code, peak: peak.unwrap_or(u64::MAX), stderr, stdout_bytes, stdout }
}

/// A log in its own directory, written frame by frame.
struct ForgedLog {
    directory: tempfile::TempDir,
    log: forge::ForgedLog,
}

impl ForgedLog {
    fn new() -> ForgedLog {
        let directory = tempfile::tempdir().unwrap();
        let log = forge::ForgedLog::new(directory.path());
        ForgedLog { directory, log }
    }

    fn record(&mut self, kind: RecordKind, body: &[u8]) -> u64 {
        self.log.record(kind, body)
    }

    fn event(&mut self, data: &[u8]) -> u64 {
        self.log.event(data)
    }

    fn begin(&mut self, parent: Option<u64>) -> u64 {
        let arguments = Value::from("{}").encode();
        let begin = ToolBegin {
            parent: parent.map(Into::into),
            idempotency: Idempotency::Natural,
            ..ToolBegin::new("tool", Payload::new(&arguments))
        };
        self.record(RecordKind::ToolBegin, &begin.encode())
    }

    fn fail(&mut self, begin: u64, parent: Option<u64>) {
        let end = ToolEnd {
            parent: parent.map(Into::into),
            rolls_back: true,
            outside: ExternalEffects::None,
            elapsed_us: 1,
            ..ToolEnd::new(begin.into(), "tool", Outcome::Failed)
        };
        self.record(RecordKind::ToolEnd, &end.encode());
    }

    fn dir(&self) -> PathBuf {
        self.log.dir().to_owned()
    }

    /// Creates a sparse object that contains a byte string of this many zeros; returns its
    /// reference.
    fn sparse_object(&self, len: u64) -> Vec<u8> {
        let mut head = vec![0xc6];
        head.extend_from_slice(&(len as u32).to_be_bytes());
        let mut hasher = blake3::Hasher::new();
        hasher.update(&head);
        let zeros = vec![0; 1 << 20];
        (0..len >> 20).for_each(|_| {
            hasher.update(&zeros);
        });
        let object = ObjectId { hash: *hasher.finalize().as_bytes(), len: head.len() as u64 + len };
        fs::create_dir_all(self.dir().join("objects")).unwrap();
        let file = File::create(self.dir().join("objects").join(object.file_name())).unwrap();
        file.write_all_at(&head, 0).unwrap();
        file.set_len(object.len).unwrap();
        object.reference()
    }

    fn done(mut self) -> ForgedLog {
        self.log.flush();
        self
    }
}

/// Returns a log of four records that each replace all items of a slice by `count` items of one
/// byte, and of a rollback to each, so that each is kept.
fn replaced_items(count: usize) -> ForgedLog {
    let mut forge = ForgedLog::new();
    let one = [1];
    for _ in 0..4 {
        let added = AddedItems::Items { items: vec![Payload::new(&one); count], version: 1 };
        let effect = Effect { slice: 1, removed: RemovedItems::All, added, before: None };
        forge.record(
            RecordKind::Dispatch,
            &Dispatch { action: Action::Seed, effects: Some(vec![effect]) }.encode(),
        );
    }
    let last = forge.log.next();
    for to in last - 4..last {
        forge.record(RecordKind::Rollback, &Rollback { to: to.into(), preserve_logs: true }.encode());
    }
    forge.done()
}

/// Commands that read sessions and are not in [`verbs`], each with the reason.
const ELSEWHERE: [(&str, &str); 7] = [
    ("transcript", "a test below measures long conversations"),
    ("compact", "a test below measures it under a budget"),
    ("gc", "a test below measures it under a budget"),
    ("pending", "opens sessions like `ledger`"),
    ("task", "opens sessions like `state`"),
    ("report", "`tests/suite/report.rs` measures it"),
    ("view", "runs until it is interrupted"),
];

/// The list of reading commands was maintained by hand, so a new command could be missing.
#[test]
fn every_command_that_reads_sessions_is_measured_or_has_a_reason() {
    let _together = together();
    let measured: Vec<&str> = verbs("1", "NEW").iter().map(|(words, _)| words[0]).collect();
    for example in foldlog_tests::verbs::reading_examples() {
        let name = example.split(' ').next().unwrap();
        let is_excused = ELSEWHERE.iter().any(|(excused, _)| *excused == name);
        assert!(measured.contains(&name) != is_excused, "{name}");
    }
}

/// Returns the verbs that read a session, each with its other arguments.
fn verbs<'a>(last: &'a str, new: &'a str) -> Vec<(Vec<&'a str>, bool)> {
    let verbs: Vec<Vec<&str>> = vec![
        vec!["sessions", "STORE"],
        vec!["show", "SESSION", "--to", "3"],
        vec!["show", "SESSION"],
        vec!["tail", "SESSION"],
        vec!["state", "SESSION"],
        vec!["diff", "SESSION", "1", last],
        vec!["verify", "SESSION"],
        vec!["replay", "SESSION", "--thorough"],
        vec!["stats", "SESSION"],
        vec!["ledger", "SESSION"],
        vec!["export", "SESSION", "--format", "jsonl"],
        vec!["export", "SESSION", "--format", "snapshot-json"],
        vec!["settle", "SESSION", "1", "failed", "--by", "me", "--reason", "none"],
        vec!["salvage", "SESSION", "--to", new],
    ];
    verbs.into_iter().flat_map(|verb| [(verb.clone(), false), (verb, true)]).collect()
}

/// Runs every verb, for people and as JSON. `stored` is the size of the requested STATE, and
/// `codes` are the allowed exit codes.
fn every_verb(shape: &str, forge: &ForgedLog, stored: u64, read_max: u64, codes: &[i32]) {
    let bound = BOUND + 3 * stored;
    let (session, store) = (forge.dir(), forge.directory.path().to_owned());
    let last = (forge.log.next() - 1).to_string();
    for (number, (verb, json)) in verbs(&last, "NEW").into_iter().enumerate() {
        // A writer keeps STATE at the start of each open call, of which there may be 1,024 over
        // 4,096 slices.
        if verb[0] == "settle" && shape == "nested failures" {
            continue;
        }
        let new = tempfile::tempdir().unwrap();
        let words: Vec<String> = verb
            .iter()
            .map(|word| match *word {
                "SESSION" => text(&session),
                "STORE" => text(&store),
                "NEW" => text(&new.path().join(number.to_string())),
                word => word.to_owned(),
            })
            .chain(json.then(|| "--json".to_owned()))
            .collect();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let ran = run(&words, ADDRESS_SPACE_BESIDE + bound, read_max);
        let told = format!("{shape}: {} of {stored} bytes took {}: {}", verb.join(" "), ran.peak, ran.stderr);
        println!("{shape}: {:<60} json {json:<5} exit {} peak {:>12}", verb.join(" "), ran.code, ran.peak);
        assert!(ran.peak <= bound, "{told}");
        // The operation to settle does not exist.
        assert!(codes.contains(&ran.code) || verb[0] == "settle" && ran.code == 2, "{told}");
        assert!(ran.stdout_bytes > 0, "{told}");
    }
}

fn text(path: &Path) -> String {
    path.to_str().unwrap().to_owned()
}

/// 376 KiB of nested start records took 3 GiB: each kept a copy of all operations that were open
/// before it.
#[test]
fn nested_begins_cost_no_more_than_they_hold() {
    let _together = together();
    // More open calls than allowed contradict the log, which only `tail` does not check.
    for (begins, codes) in [(1_000, &[0][..]), (5_000, &[0, 1])] {
        let mut forge = ForgedLog::new();
        let mut parent = None;
        for _ in 0..begins {
            parent = Some(forge.begin(parent));
        }
        let forge = forge.done();
        every_verb("nested begins", &forge, forge.log.bytes(), u64::MAX, codes);
    }
}

/// The same, but each call fails, so that STATE at each start record is kept, with many slices.
#[test]
fn nested_calls_that_all_failed_cost_no_more_than_they_hold_or_are_refused() {
    let _together = together();
    let mut forge = ForgedLog::new();
    let slices = (2..4000).map(|id| SliceDeclaration {
        id,
        name: format!("slice {id}"),
        policy: Policy::State,
        item: "said".to_owned(),
    });
    let declare = Declare { events: Vec::new(), slices: slices.collect() };
    forge.record(RecordKind::Declare, &declare.encode());
    let mut open = Vec::new();
    let said = Value::from("said").encode();
    for _ in 0..1_000 {
        open.push(forge.begin(open.last().copied()));
        forge.event(&said);
    }
    while let Some(begin) = open.pop() {
        forge.fail(begin, open.last().copied());
    }
    let forge = forge.done();
    every_verb("nested failures", &forge, forge.log.bytes(), u64::MAX, &[0, 2]);
}

/// 28 KiB of disk took 6 GiB: each of 200 events named one object, and each had a copy of it.
#[test]
fn an_object_is_held_once_however_often_it_is_named() {
    let _together = together();
    let mut forge = ForgedLog::new();
    let len = 16 << 20;
    let reference = forge.sparse_object(len);
    for _ in 0..100 {
        forge.event(&reference);
    }
    let forge = forge.done();
    // A part of the 1.6 GiB of results suffices to show that they arrive.
    every_verb("one object 100 times", &forge, len + forge.log.bytes(), 1 << 20, &[0]);
}

/// `state --json` and `export` of a log of 200 MB took 6 GiB: all slices were in memory as values,
/// and then as one text.
#[test]
fn a_large_state_is_printed_as_it_is_read() {
    let _together = together();
    let mut forge = ForgedLog::new();
    for number in 0..4_000_u32 {
        let said =
            Value::Array((0..2_000).map(|part| Value::from(u64::from((number + part) % 100))).collect());
        forge.event(&said.encode());
    }
    let forge = forge.done();
    // Far less than the STATE, so that the limit is that of a reader that keeps none of it.
    every_verb("a large state", &forge, 0, u64::MAX, &[0]);
}

/// A single byte of a body can create an item, and each item takes a name.
#[test]
fn items_of_one_byte_are_refused_once_their_names_take_too_much() {
    let _together = together();
    let forge = replaced_items(1 << 20);
    let (store, session) = (text(forge.directory.path()), text(&forge.dir()));
    for verb in
        [&["state"][..], &["verify"], &["replay"], &["stats"], &["export", "--format", "snapshot-json"]]
    {
        let words: Vec<&str> = verb.iter().copied().chain([session.as_str()]).collect();
        let ran = run(&words, u64::from(u32::MAX), u64::MAX);
        assert_eq!(ran.code, 2, "{words:?}: {}", ran.stderr);
        assert!(ran.stderr.contains("bytes of memory"), "{words:?}: {}", ran.stderr);
        assert!(ran.stderr.contains("--memory"), "{words:?}: {}", ran.stderr);
        println!("items of one byte: {words:?} refused at {}", ran.peak);
    }
    let allowed = run(&["state", &session, "--memory", "4000000000"], u64::from(u32::MAX), 1 << 20);
    assert_eq!(allowed.code, 0, "{}", allowed.stderr);
    // Verbs that need no slices do not load any.
    for verb in ["show", "ledger", "tail"] {
        assert_eq!(run(&[verb, &session], ADDRESS_SPACE_BESIDE, u64::MAX).code, 0);
    }
    // A session over its budget is a row that states so, and the others follow.
    let listed = run(&["sessions", &store, "--json", "--memory", "10"], ADDRESS_SPACE_BESIDE, u64::MAX);
    assert_eq!(listed.code, 2, "{}", listed.stderr);
    assert!(listed.stdout.contains(r#""error":"#), "{}", listed.stdout);
}

/// Returns the limit of a verb whose budget is this many bytes.
fn most(budget: u64) -> u64 {
    budget + budget / 5 + (32 << 20)
}

fn files(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let files = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).filter(|path| path.is_file());
    files.map(|path| (path.clone(), fs::read(&path).unwrap())).collect()
}

/// 12 MB of log took 1.5 GiB under `--memory 64M`: `recover` and `settle` did not receive the
/// budget, nor did `compact`, `gc` and `salvage`, and readers counted a record's items only after
/// loading them.
#[test]
fn commands_that_write_are_refused_before_they_take_more_than_their_budget() {
    const BUDGET: u64 = 8 << 20;
    let _together = together();
    let forge = replaced_items(200_000);
    let session = text(&forge.dir());
    let new = tempfile::tempdir().unwrap();
    let (tree, salvaged) = (text(&new.path().join("tree")), text(&new.path().join("salvaged")));
    let before = files(&forge.dir());
    for verb in [
        &["recover", &session][..],
        &["settle", &session, "1", "failed", "--by", "me", "--reason", "none"],
        &["compact", &session, "--dry-run"],
        &["compact", &session],
        &["gc", &session],
        &["rewind", &session, "2", "--preview"],
        &["salvage", &session, "--to", &salvaged],
        &["export", &session, "--format", "aca", "--to", &tree],
        &["diff", &session, "1", "2"],
        &["state", &session],
        &["verify", &session],
    ] {
        let words: Vec<&str> = verb.iter().copied().chain(["--memory", "8MiB"]).collect();
        let ran = run(&words, u64::from(u32::MAX), u64::MAX);
        println!("{verb:?}: exit {} peak {:>12} of {}", ran.code, ran.peak, most(BUDGET));
        assert!(ran.peak <= most(BUDGET), "{verb:?}: {}", ran.peak);
        assert_eq!(ran.code, 2, "{verb:?}: {}{}", ran.stdout, ran.stderr);
        assert!(ran.stderr.contains("more than the budget of 8388608 bytes"), "{verb:?}: {}", ran.stderr);
        assert!(ran.stderr.contains("--memory"), "{verb:?}: {}", ran.stderr);
        assert!(files(&forge.dir()) == before, "{verb:?} changed the session");
    }
    let allowed = run(&["recover", &session, "--memory", "1GiB"], u64::from(u32::MAX), u64::MAX);
    assert_eq!(allowed.code, 0, "{}", allowed.stderr);
}

/// 196 MB of small values took 6.9 GB as a tree, since all of them were in memory as values and
/// then as one text; `rewind --preview` took as much.
#[test]
fn a_tree_is_written_as_its_values_are_read_and_a_preview_is_refused() {
    const BUDGET: u64 = 24 << 20;
    let _together = together();
    let mut forge = ForgedLog::new();
    let said = Value::Array(vec![Value::from(1_u64); 300_000]).encode();
    for _ in 0..12 {
        forge.event(&said);
    }
    let forge = forge.done();
    let session = text(&forge.dir());
    let new = tempfile::tempdir().unwrap();
    for codec in ["none", "zstd", "gzip", "lz4"] {
        let tree = text(&new.path().join(codec));
        let words =
            ["export", &session, "--format", "aca", "--to", &tree, "--compress", codec, "--memory", "24MiB"];
        let ran = run(&words, u64::from(u32::MAX), u64::MAX);
        println!("export aca {codec}: exit {} peak {:>12} of {}", ran.code, ran.peak, most(BUDGET));
        assert_eq!(ran.code, 0, "{codec}: {}", ran.stderr);
        assert!(ran.peak <= most(BUDGET), "{codec}: {}", ran.peak);
        let store = text(&new.path().join(format!("store of {codec}")));
        let imported = run(&["import", "aca", &tree, "--store", &store], u64::from(u32::MAX), u64::MAX);
        assert_eq!(imported.code, 0, "{codec}: {}", imported.stderr);
    }
    let words = ["rewind", &session, "1", "--preview", "--memory", "24MiB"];
    let preview = run(&words, u64::from(u32::MAX), u64::MAX);
    println!("rewind --preview: exit {} peak {:>12} of {}", preview.code, preview.peak, most(BUDGET));
    assert!(preview.peak <= most(BUDGET), "{}", preview.peak);
    assert!(preview.code == 2 && preview.stderr.contains("--memory"), "{}", preview.stderr);
}

/// All items that exist at only one of two positions were in memory at once, 200 MB of a log under
/// `--memory 64M`.
#[test]
fn differences_are_printed_as_their_items_are_read() {
    const BUDGET: u64 = 8 << 20;
    let _together = together();
    let mut forge = ForgedLog::new();
    let said = Value::from("x".repeat(1 << 20)).encode();
    for _ in 0..64 {
        forge.event(&said);
    }
    let last = (forge.log.next() - 1).to_string();
    let forge = forge.done();
    let session = text(&forge.dir());
    let words = ["diff", &session, "1", &last, "--memory", "8MiB"];
    let ran = run(&words, u64::from(u32::MAX), u64::MAX);
    println!("diff: exit {} peak {:>12} of {}", ran.code, ran.peak, most(BUDGET));
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    assert_eq!(ran.stdout.matches("  + items[").count(), 64, "{}", ran.stdout);
    assert!(ran.peak <= most(BUDGET), "{}", ran.peak);
}

/// Both states were in memory with all of their items, and each item was decoded whether it
/// differed or not: comparing 196 MB with itself took 420 MB under `--memory 64M`.
#[test]
fn two_sessions_are_compared_as_their_items_are_read() {
    const BUDGET: u64 = 8 << 20;
    let _together = together();
    let large = Value::Array(vec![Value::from(1_u64); 300_000]).encode();
    let session = |changed: Option<u32>| {
        let mut forge = ForgedLog::new();
        // Decoded, it would be over the budget. Both sessions have it.
        forge.event(&large);
        for number in 0..64 {
            let text = if changed == Some(number) { "y" } else { "x" };
            let said = (Value::from("at"), Value::from(u64::from(number)));
            let text = (Value::from("text"), Value::from(text.repeat(1 << 20)));
            forge.event(&Value::Map(vec![said, text]).encode());
        }
        forge.done()
    };
    let (one, same, other) = (session(None), session(None), session(Some(40)));
    let compared = |other: &ForgedLog| {
        let words = ["diff", &text(&one.dir()), "--with", &text(&other.dir()), "--memory", "8MiB"];
        let ran = run(&words, u64::from(u32::MAX), u64::MAX);
        println!("diff --with: exit {} peak {:>12} of {}", ran.code, ran.peak, most(BUDGET));
        assert_eq!(ran.code, 0, "{}", ran.stderr);
        assert!(ran.peak <= most(BUDGET), "{}", ran.peak);
        ran.stdout
    };
    assert!(compared(&same).contains("no difference"));
    let told = compared(&other);
    assert_eq!(told.matches("items[").count(), 1, "{told}");
    assert!(told.contains("~ items[41].text"), "{told}");

    // A differing item is decoded, which takes too much.
    let mut forge = ForgedLog::new();
    forge.event(&Value::Array(vec![Value::from(2_u64); 300_000]).encode());
    let forge = forge.done();
    let words = ["diff", &text(&one.dir()), "--with", &text(&forge.dir()), "--memory", "8MiB"];
    let ran = run(&words, u64::from(u32::MAX), u64::MAX);
    println!("diff --with: exit {} peak {:>12} of {}", ran.code, ran.peak, most(BUDGET));
    assert!(ran.code == 2 && ran.peak <= most(BUDGET), "{} {}", ran.code, ran.peak);
    assert!(ran.stderr.contains("more than the budget of 8388608 bytes"), "{}", ran.stderr);
    assert!(ran.stderr.contains("--memory"), "{}", ran.stderr);
}

/// The compared part of each item takes memory in addition to the names of the items, of which both
/// sessions have many.
#[test]
fn two_sessions_of_many_items_are_refused_before_they_take_more_than_their_budget() {
    const BUDGET: u64 = 10 << 20;
    let _together = together();
    let session = |byte: u8| {
        let mut forge = ForgedLog::new();
        let one = [byte];
        for _ in 0..10 {
            let added = AddedItems::Items { items: vec![Payload::new(&one); 20_000], version: 1 };
            let effect = Effect { slice: 1, removed: RemovedItems::None, added, before: None };
            let dispatch = Dispatch { action: Action::Seed, effects: Some(vec![effect]) };
            forge.record(RecordKind::Dispatch, &dispatch.encode());
        }
        forge.done()
    };
    let (one, other) = (session(1), session(2));
    let words = ["diff", &text(&one.dir()), "--with", &text(&other.dir()), "--memory", "10MiB"];
    let ran = run(&words, u64::from(u32::MAX), u64::MAX);
    println!("diff --with: exit {} peak {:>12} of {}", ran.code, ran.peak, most(BUDGET));
    assert!(ran.code == 2 && ran.peak <= most(BUDGET), "{} {}: {}", ran.code, ran.peak, ran.stderr);
    assert!(ran.stderr.contains("more than the budget of 10485760 bytes"), "{}", ran.stderr);
    let words = ["diff", &text(&one.dir()), "--with", &text(&other.dir()), "--memory", "256MiB"];
    assert_eq!(run(&words, u64::from(u32::MAX), u64::MAX).code, 0);
}

/// A preview kept the whole STATE, of which a rewind may change little.
#[test]
fn a_preview_holds_what_the_rewind_changes_and_not_the_whole_state() {
    const BUDGET: u64 = 8 << 20;
    let _together = together();
    let mut forge = ForgedLog::new();
    let said = Value::from("x".repeat(1 << 20)).encode();
    let last = (0..64).map(|_| forge.event(&said)).last().unwrap();
    let forge = forge.done();
    let before = files(&forge.dir());
    let (session, to) = (text(&forge.dir()), (last - 2).to_string());
    for json in [&[][..], &["--json"]] {
        let mut words = vec!["rewind", &session, &to, "--preview", "--memory", "8MiB"];
        words.extend(json);
        let ran = run(&words, u64::from(u32::MAX), u64::MAX);
        println!("rewind --preview {json:?}: exit {} peak {:>12} of {}", ran.code, ran.peak, most(BUDGET));
        assert_eq!(ran.code, 0, "{}", ran.stderr);
        assert!(ran.peak <= most(BUDGET), "{}", ran.peak);
        if json.is_empty() {
            assert!(ran.stdout.contains("64 to 62 items; 2 removed, 0 added"), "{}", ran.stdout);
            assert_eq!(ran.stdout.matches("  - items[").count(), 2, "{}", ran.stdout);
        }
    }
    assert!(files(&forge.dir()) == before, "a preview changed the session");
}

/// `import aca --partial` iterated over all numbers below the one in the manifest.
#[test]
fn a_tree_whose_manifest_says_a_number_of_checkpoints_beyond_all_is_told_of_at_once() {
    let _together = together();
    let mut forge = ForgedLog::new();
    forge.event(&Value::from("said").encode());
    let forge = forge.done();
    let new = tempfile::tempdir().unwrap();
    let (tree, store) = (text(&new.path().join("tree")), text(&new.path().join("store")));
    let session = text(&forge.dir());
    let exported =
        run(&["export", &session, "--format", "aca", "--to", &tree], ADDRESS_SPACE_BESIDE, u64::MAX);
    assert_eq!(exported.code, 0, "{}", exported.stderr);
    let path = new.path().join("tree/.aca/sessions").join(forge::Forge::SESSION.to_string());
    let path = path.join("meta/checkpoint_manifest.json");
    let sealed = fs::read_to_string(&path).unwrap();
    let one_line: String = sealed.lines().map(|line| line.trim_start().replace("\": ", "\":")).collect();
    let (manifest, _) = one_line.strip_prefix("{\"manifest\":").unwrap().rsplit_once(",\"blake3\":").unwrap();
    let many = manifest.replace("\"checkpoints\":1,", "\"checkpoints\":18446744073709551615,");
    assert_ne!(many, manifest);
    let digest = blake3::hash(many.as_bytes()).to_hex();
    fs::write(&path, format!("{{\"manifest\":{many},\"blake3\":\"{digest}\"}}\n")).unwrap();
    let words = ["import", "aca", &tree, "--store", &store, "--partial"];
    let told = run(&words, ADDRESS_SPACE_BESIDE, u64::MAX);
    println!("import aca --partial: exit {} peak {:>12}", told.code, told.peak);
    assert!(told.peak <= BOUND && told.stdout.contains("partial"), "{}{}", told.stdout, told.stderr);
}

/// The limit of a reader for each message of a conversation, in addition to three times the bytes
/// of its record.
const MESSAGE_BYTES: u64 = 1 << 10;

/// The texts of a conversation are in memory, each with the data that a reader needs for a message.
#[test]
fn a_transcript_of_a_hundred_thousand_messages_takes_a_stated_multiple_of_them() {
    const MESSAGES: u64 = 100_000;
    let _together = together();
    let mut forge = ForgedLog::new();
    for number in 0..MESSAGES / 2 {
        let scope = || ConversationScope::new("long");
        let asked = Value::from(format!("What about number {number}?")).encode();
        forge.record(RecordKind::Input, &Input::new(scope(), Role::User, Payload::new(&asked)).encode());
        let answered = Value::from(format!("Number {number} is as it should be.")).encode();
        forge.record(RecordKind::Answer, &AnswerBody::new(scope(), Some(Payload::new(&answered))).encode());
    }
    let forge = forge.done();
    let session = text(&forge.dir());
    let bound = BOUND + 3 * forge.log.bytes() + MESSAGES * MESSAGE_BYTES;
    let json = ["--json"];
    for (format, more) in
        [("text", &[][..]), ("text", &json), ("markdown", &[]), ("openai", &[]), ("anthropic", &[])]
    {
        let mut words = vec!["transcript", &session, "--format", format];
        words.extend(more);
        let ran = run(&words, ADDRESS_SPACE_BESIDE + bound, u64::MAX);
        println!("transcript {format} {more:?}: exit {} peak {:>12} of {bound}", ran.code, ran.peak);
        assert_eq!(ran.code, 0, "{format}: {}", ran.stderr);
        assert!(ran.peak <= bound, "{format}: {} of {bound}", ran.peak);
        assert!(ran.stdout_bytes > MESSAGES * 20, "{format}");
    }
    // Memory is counted: a smaller budget is refused.
    for verb in [
        &["transcript", &session][..],
        &["state", &session],
        &["export", &session, "--format", "snapshot-json"],
    ] {
        let words: Vec<&str> = verb.iter().copied().chain(["--memory", "1000000"]).collect();
        let ran = run(&words, ADDRESS_SPACE_BESIDE, u64::MAX);
        assert_eq!(ran.code, 2, "{words:?}: {}", ran.stderr);
        assert!(ran.stderr.contains("bytes of memory"), "{words:?}: {}", ran.stderr);
    }
}
