//! Positions as arguments: a number, or the tag of a snapshot.

use foldlog::{Session, SnapshotOptions, Store};
use foldlog_test_support::host::types;
use foldlog_tests::verbs::foldlog;

use super::{options, step};

/// Creates a session with two snapshots of one tag, one with a number as its tag, and steps between
/// them.
fn session(store: &Store) -> Session {
    let session = store.create(&types()).unwrap();
    let snapshot = |tag: &str| session.snapshot(SnapshotOptions::with_tag(tag)).unwrap().position;
    session.dispatch(step("read", 1)).unwrap();
    snapshot("before the attempt");
    session.dispatch(step("try", 2)).unwrap();
    snapshot("before the attempt");
    session.dispatch(step("try again", 3)).unwrap();
    snapshot("5");
    session.dispatch(step("give up", 4)).unwrap();
    session
}

#[test]
fn a_tag_stands_for_the_latest_snapshot_that_has_it_wherever_a_position_does() {
    let directory = tempfile::tempdir().unwrap();
    let session = session(&Store::open_with(directory.path(), options()).unwrap());
    let snapshots = session.log().snapshots().unwrap();
    let dir = session.dir().to_str().unwrap().to_owned();
    session.close().unwrap();
    let latest = snapshots[1].position.to_string();
    for (verb, rest) in [("state", &["--slice", "plan"][..]), ("export", &["--format", "snapshot-json"])] {
        let run = |at: &str| foldlog([&[verb, &*dir, "--at", at], rest].concat());
        let tagged = run("before the attempt");
        assert_eq!(tagged.code, 0, "{tagged:?}");
        assert_eq!(tagged.stdout, run(&latest).stdout, "{verb}");
        assert_ne!(tagged.stdout, run(&snapshots[0].position.to_string()).stdout, "{verb}");
        // A number is a position, unless it is marked as a tag.
        assert_eq!(run("tag:5").stdout, run(&snapshots[2].position.to_string()).stdout, "{verb}");
        assert_ne!(run("tag:5").stdout, run("5").stdout, "{verb}");
    }
    let ran = foldlog(["diff", &dir, "before the attempt", "tag:5"]);
    let numbers = [snapshots[1].position, snapshots[2].position].map(|position| position.to_string());
    assert_eq!((ran.code, ran.stdout), (0, foldlog(["diff", &dir, &numbers[0], &numbers[1]]).stdout));
    for [from, to] in [["before the attempt", "tag:5"], [&numbers[0], "tag:5"]] {
        let shown = foldlog(["show", &dir, "--from", from, "--to", to]);
        let numbered = foldlog(["show", &dir, "--from", &numbers[0], "--to", &numbers[1]]);
        assert_eq!((shown.code, &shown.stdout), (0, &numbered.stdout), "{shown:?}");
        let file = directory.path().join("report.html");
        let report = ["report", &dir, "--html", file.to_str().unwrap(), "--force", "--json"];
        let report = foldlog(report.into_iter().chain(["--from", from, "--to", to]));
        let listed = format!(r#""from":{},"last":{}"#, numbers[0], numbers[1]);
        assert!(report.code == 0 && report.stdout.contains(&listed), "{report:?}");
    }
    let tails = |from: &str| foldlog(["tail", &*dir, "--from", from]);
    let tagged = tails("before the attempt");
    assert_eq!((tagged.code, &tagged.stdout), (0, &tails(&latest).stdout), "{tagged:?}");
    assert!(tagged.stdout.lines().count() > 2, "{tagged:?}");
    let kept = |position: &str| {
        foldlog(["compact", &dir, "--keep", "none", "--dry-run", "--keep-position", position, "--json"])
    };
    let (tagged, numbered) = (kept("before the attempt"), kept(&latest));
    assert_eq!((tagged.code, &tagged.stdout), (0, &numbered.stdout), "{tagged:?}");
    assert_eq!(kept("nowhere").code, 2);
    let ran = foldlog(["state", &dir, "--at", "after \u{1b}[31mit"]);
    assert_eq!(ran.code, 2, "{ran:?}");
    assert!(ran.stderr.contains(r"no snapshot has the tag `after \u{1b}[31mit`"), "{ran:?}");
    assert!(
        ran.stderr.contains("the tags are `5`, `before the attempt`; or give a position from 0 to"),
        "{ran:?}"
    );
}
