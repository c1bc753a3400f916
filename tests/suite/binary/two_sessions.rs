//! `foldlog diff --with` and `--parent`: comparison of a run that went wrong with one that worked.

use foldlog::{Session, SessionOptions, Store, StoreOptions};
use foldlog_test_support::host::types;
use foldlog_tests::verbs::foldlog;
use serde_json::Value;

use super::{noted, options, step};

fn run(store: &Store, titles: &[&str]) -> Session {
    let session = store.create(&types()).unwrap();
    titles.iter().for_each(|title| {
        session.dispatch(step(title, 1)).unwrap();
    });
    session
}

fn closed(session: Session) -> String {
    let dir = session.dir().to_str().unwrap().to_owned();
    session.close().unwrap();
    dir
}

#[test]
fn two_runs_are_compared_from_where_they_part() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open_with(directory.path(), options()).unwrap();
    let works = closed(run(&store, &["read", "plan", "write"]));
    let fails = closed(run(&store, &["read", "pl\u{1b}[31man", "write", "write again"]));
    let ran = foldlog(["diff", &fails, "--with", &works]);
    assert_eq!(ran.code, 0, "{ran:?}");
    let lines: Vec<&str> = ran.stdout.lines().collect();
    assert!(lines[0].starts_with("both begin with the same "), "{}", ran.stdout);
    assert!(lines[1].contains("here") && lines[1].ends_with("dispatch plan.step_added"), "{}", ran.stdout);
    assert!(lines[3].contains(r#"$.event.title  "pl\u001b[31man" -> "plan""#), "{}", ran.stdout);
    let of_plan: Vec<&&str> = lines.iter().skip_while(|line| **line != "plan").skip(1).take(2).collect();
    assert!(of_plan[0].starts_with("  ~ items[1].title"), "{}", ran.stdout);
    assert!(of_plan[1].starts_with("  - items[3]"), "only what is more is told: {}", ran.stdout);

    // The same as JSON, and with the sides exchanged.
    let ran = foldlog(["diff", &works, "--with", &fails, "--json"]);
    let values: Vec<Value> = ran.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let parting = &values[0]["parting"];
    assert_eq!(parting["here"]["sequence"].as_u64(), parting["alike"].as_u64(), "{parting}");
    assert_eq!(parting["difference"]["recorded"], "plan", "{parting}");
    assert!(values[1..].iter().any(|one| one["slice"] == "plan" && one["change"] == "added"), "{values:#?}");

    // If only the first steps are compared, nothing differs but the rest.
    let early = values[0]["parting"]["alike"].as_u64().unwrap() - 1;
    let ran = foldlog(["diff", &fails, &early.to_string(), &early.to_string(), "--with", &works]);
    assert!(ran.stdout.ends_with("no difference in slices, tags and conversations\n"), "{}", ran.stdout);
}

#[test]
fn a_fork_is_compared_with_its_parent_and_one_that_has_none_is_told_so() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open_with(directory.path(), options()).unwrap();
    let parent = run(&store, &["read"]);
    let at = parent.log().position().unwrap();
    let fork = store.fork(parent.id(), at, &types(), SessionOptions::default()).unwrap();
    fork.dispatch(step("try", 2)).unwrap();
    let (parent, fork) = (closed(parent), closed(fork));
    let (by_name, found) =
        (foldlog(["diff", &fork, "--with", &parent]), foldlog(["diff", &fork, "--parent"]));
    assert_eq!((found.code, &found.stdout), (0, &by_name.stdout), "{found:?}");
    assert!(found.stdout.contains(&format!("  here   {}  opened", at + 1)), "{}", found.stdout);
    assert!(found.stdout.contains("  there  the log ends"), "{}", found.stdout);
    assert!(found.stdout.contains("plan\n  - items[1]"), "{}", found.stdout);

    let alone = foldlog(["diff", &parent, "--parent"]);
    assert_eq!(alone.code, 2, "{alone:?}");
    assert!(alone.stderr.contains("has no parent session"), "{alone:?}");
    std::fs::remove_dir_all(&parent).unwrap();
    let gone = foldlog(["diff", &fork, "--parent"]);
    assert_eq!(gone.code, 2, "{gone:?}");
    assert!(gone.stderr.contains("is not next to") && gone.stderr.contains("--with OTHER"), "{gone:?}");
    // For one session two positions are required.
    assert_eq!(foldlog(["diff", &fork]).code, 2);
}

/// Creates two runs that diverge, each at a large text that is stored in an object.
fn large(directory: &std::path::Path) -> [String; 2] {
    let store = Store::open_with(directory, StoreOptions { object_bytes_min: 256, ..options() }).unwrap();
    ["here \u{1b}[31m", "there"].map(|end| {
        let session = run(&store, &["read"]);
        session.dispatch(noted(&format!("{}{end}", "what both say, ".repeat(40)))).unwrap();
        closed(session)
    })
}

fn object(session: &str) -> std::path::PathBuf {
    let objects = std::fs::read_dir(std::path::Path::new(session).join("objects")).unwrap();
    let [object] = objects.map(|entry| entry.unwrap().path()).collect::<Vec<_>>().try_into().unwrap();
    object
}

#[test]
fn what_objects_hold_is_told_where_two_runs_part() {
    let directory = tempfile::tempdir().unwrap();
    let [here, there] = large(directory.path());
    let names =
        [&here, &there].map(|session| object(session).file_name().unwrap().to_str().unwrap().to_owned());
    let ran = foldlog(["diff", &here, "--with", &there]);
    assert_eq!(ran.code, 0, "{ran:?}");
    let lines: Vec<&str> = ran.stdout.lines().collect();
    // The common start is left out, except for a few words before the difference.
    let said = r#"  ~ $.event.text  …say, what both say, here \u001b[31m" -> …say, what both say, there""#;
    assert_eq!(lines[3], said);
    for (line, (side, name)) in lines[4..].iter().zip([("here", &names[0]), ("there", &names[1])]) {
        assert!(line.starts_with(&format!("    {side:<5}  object {name}, ")), "{line}");
        assert!(line.ends_with(" bytes"), "{line}");
    }
    let ran = foldlog(["diff", &here, "--with", &there, "--json"]);
    let first: Value = serde_json::from_str(ran.stdout.lines().next().unwrap()).unwrap();
    assert_eq!(first["parting"]["difference"]["recorded"]["$object"], names[0], "{first}");
    for (side, name, end) in [("here", &names[0], "here \u{1b}[31m"), ("there", &names[1], "there")] {
        let held = &first["objects"][side];
        assert_eq!(held["object"], **name, "{held}");
        let bytes = std::fs::metadata(object(if side == "here" { &here } else { &there })).unwrap().len();
        assert_eq!(held["bytes"].as_u64(), Some(bytes), "{held}");
        assert!(held["value"]["text"].as_str().unwrap().ends_with(end), "{held}");
        assert_eq!(held.get("error"), None);
    }
}

#[test]
fn an_object_that_is_large_or_damaged_is_named_where_two_runs_part() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open_with(directory.path(), options()).unwrap();
    let [here, there] = [2 << 20, 1 << 18].map(|length| {
        let session = run(&store, &["read"]);
        session.dispatch(noted(&"x".repeat(length))).unwrap();
        closed(session)
    });
    let ran = foldlog(["diff", &here, "--with", &there]);
    assert_eq!(ran.code, 0, "{ran:?}");
    let lines: Vec<&str> = ran.stdout.lines().collect();
    assert!(lines[3].starts_with(r#"  ~ $.event  (not read) -> {"text":"xxx"#), "{}", lines[3]);
    let reason = ": objects of more than 1048576 bytes are not read for this";
    assert!(lines[4].starts_with("    here   object ") && lines[4].ends_with(reason), "{}", lines[4]);
    let ran = foldlog(["diff", &here, "--with", &there, "--json"]);
    let first: Value = serde_json::from_str(ran.stdout.lines().next().unwrap()).unwrap();
    let held = &first["objects"]["here"];
    assert!(held["error"].as_str().unwrap().contains("1048576 bytes"), "{held}");
    assert_eq!(held.get("value"), None, "{held}");

    // A record with a damaged object is damaged: the intact part ends before it, and the object is
    // named.
    let mut bytes = std::fs::read(object(&there)).unwrap();
    bytes[40] ^= 1;
    std::fs::write(object(&there), bytes).unwrap();
    let ran = foldlog(["diff", &here, "--with", &there]);
    assert_eq!(ran.code, 1, "{ran:?}");
    assert!(ran.stdout.contains("  there  the log ends"), "{}", ran.stdout);
    assert!(ran.stderr.contains(object(&there).to_str().unwrap()), "{}", ran.stderr);
    // The suggested next command is for the damaged session.
    assert!(ran.stderr.contains(&format!("foldlog show {there} --beyond-damage")), "{}", ran.stderr);
}

#[test]
fn what_is_sound_of_a_damaged_session_is_compared_and_the_damage_is_told() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open_with(directory.path(), options()).unwrap();
    let (whole, damaged) = (closed(run(&store, &["a", "b", "c"])), closed(run(&store, &["a", "b", "c"])));
    let segment = std::path::Path::new(&damaged).join("0000000000.seg");
    let mut bytes = std::fs::read(&segment).unwrap();
    let at = bytes.windows(5).position(|window| window == b"title").unwrap();
    let last = bytes.windows(5).rposition(|window| window == b"title").unwrap();
    assert!(at < last);
    bytes[last] ^= 1;
    std::fs::write(&segment, bytes).unwrap();
    for arguments in [[&damaged, &whole], [&whole, &damaged]] {
        let ran = foldlog(["diff", arguments[0], "--with", arguments[1]]);
        assert_eq!(ran.code, 1, "{ran:?}");
        assert!(ran.stdout.contains("the log ends"), "{}", ran.stdout);
        assert!(ran.stderr.contains("reading ended before record"), "{}", ran.stderr);
    }
}
