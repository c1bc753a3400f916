//! `foldlog diff --with` and `--parent`: a run that went wrong beside one that worked.

use foldlog::{Session, SessionOptions, Store};
use foldlog_tests::host::types;
use foldlog_tests::verbs::foldlog;
use serde_json::Value;

use super::{options, step};

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
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open_with(folder.path(), options()).unwrap();
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

    // The same as values, and from the other side.
    let ran = foldlog(["diff", &works, "--with", &fails, "--json"]);
    let values: Vec<Value> = ran.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let parting = &values[0]["parting"];
    assert_eq!(parting["here"]["sequence"].as_u64(), parting["alike"].as_u64(), "{parting}");
    assert_eq!(parting["difference"]["recorded"], "plan", "{parting}");
    assert!(values[1..].iter().any(|one| one["slice"] == "plan" && one["change"] == "added"), "{values:#?}");

    // Where only the first steps are looked at, nothing differs but what is to come.
    let early = values[0]["parting"]["alike"].as_u64().unwrap() - 1;
    let ran = foldlog(["diff", &fails, &early.to_string(), &early.to_string(), "--with", &works]);
    assert!(ran.stdout.ends_with("no difference in slices, tags and conversations\n"), "{}", ran.stdout);
}

#[test]
fn a_fork_is_compared_with_its_parent_and_one_that_has_none_is_told_so() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open_with(folder.path(), options()).unwrap();
    let parent = run(&store, &["read"]);
    let at = parent.position().unwrap();
    let fork = store.fork(parent.id(), at, &types(), SessionOptions::default()).unwrap();
    fork.dispatch(step("try", 2)).unwrap();
    let (parent, fork) = (closed(parent), closed(fork));
    let (by_name, found) =
        (foldlog(["diff", &fork, "--with", &parent]), foldlog(["diff", &fork, "--parent"]));
    assert_eq!((found.code, &found.stdout), (0, &by_name.stdout), "{found:?}");
    assert!(found.stdout.contains(&format!("  here   {}  opened", at + 1)), "{}", found.stdout);
    assert!(found.stdout.contains("  there  it ends"), "{}", found.stdout);
    assert!(found.stdout.contains("plan\n  - items[1]"), "{}", found.stdout);

    let alone = foldlog(["diff", &parent, "--parent"]);
    assert_eq!(alone.code, 2, "{alone:?}");
    assert!(alone.stderr.contains("comes from no other session"), "{alone:?}");
    std::fs::remove_dir_all(&parent).unwrap();
    let gone = foldlog(["diff", &fork, "--parent"]);
    assert_eq!(gone.code, 2, "{gone:?}");
    assert!(gone.stderr.contains("is not beside") && gone.stderr.contains("--with OTHER"), "{gone:?}");
    // One session has two positions.
    assert_eq!(foldlog(["diff", &fork]).code, 2);
}

#[test]
fn what_is_sound_of_a_damaged_session_is_compared_and_the_damage_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open_with(folder.path(), options()).unwrap();
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
        assert!(ran.stdout.contains("it ends"), "{}", ran.stdout);
        assert!(ran.stderr.contains("what was read ends before record"), "{}", ran.stderr);
    }
}
