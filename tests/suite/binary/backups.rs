//! Copies of sessions that a person makes with the binary.

use std::fs;
use std::path::Path;

use foldlog::inspect::LogReader;
use foldlog::{SessionOptions, Store};
use foldlog_test_support::host::types;
use foldlog_tests::verbs::Ran;
use serde_json::Value as Json;

use super::imports::run;
use super::{fixture, noted, options, step};

fn json(ran: &Ran) -> Json {
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    serde_json::from_str(&ran.stdout).unwrap()
}

#[test]
fn a_session_is_copied_gone_on_with_and_restored_by_opening_the_copy() {
    let fixture = fixture();
    let store = Store::open_with(fixture.directory.path(), options()).unwrap();
    let elsewhere = tempfile::tempdir().unwrap();
    let to = elsewhere.path().join("elsewhere/copies");
    let id = fixture.session.file_name().unwrap().to_str().unwrap().to_owned();

    let segment = fixture.session.join("0000000000.seg");
    let file = run(&["backup", "_", "--to", "_"], &[&segment, &to]);
    assert!(file.code == 2 && file.stderr.contains("it is not a directory") && !to.exists(), "{file:?}");

    let first = run(&["backup", "_", "--to", "_"], &[&fixture.session, &to]);
    assert_eq!((first.code, first.stderr.as_str()), (0, ""), "{first:?}");
    let records = LogReader::open(&fixture.session).unwrap().records_len();
    let said = format!(
        "session {id}: {records} records ({records} new); copied 1 segment, 0 objects, 0 other files, "
    );
    assert!(first.stdout.starts_with(&said), "{}", first.stdout);
    assert!(first.stdout.ends_with(&format!(" bytes; {records} records verified\n")), "{}", first.stdout);

    let session = store.open_session(id.parse().unwrap(), &types()).unwrap();
    session.dispatch(step("while it is copied", 1)).unwrap();
    session.dispatch(noted(&"n".repeat(80_000))).unwrap();
    let again = json(&run(&["backup", "_", "--to", "_", "--images", "--json"], &[&fixture.session, &to]));
    assert_eq!(again["copied"][0]["records_before"], records);
    assert_eq!(again["copied"][0]["records"], records + 2);
    assert_eq!(again["copied"][0]["objects"], 1);
    assert_eq!((&again["failed"], &again["passed_over"]), (&serde_json::json!([]), &serde_json::json!(0)));
    session.close().unwrap();

    let copy = Path::new(again["copied"][0]["dir"].as_str().unwrap());
    assert_eq!(run(&["verify", "_"], &[&to]).code, 0);
    let restored = Store::open(&to).unwrap().open_session(id.parse().unwrap(), &types()).unwrap();
    assert!(restored.dir() == copy);
    let slices = |session: &foldlog::Session| session.dynamic().state().unwrap().slices;
    assert_eq!(slices(&restored), slices(&store.open_read_only(id.parse().unwrap(), &types()).unwrap()));

    // After it is continued, the copy is another session, which no backup overwrites.
    let open = run(&["backup", "_", "--to", "_"], &[&fixture.session, &to]);
    assert!(open.code == 2 && open.stderr.contains("already open for writing"), "{open:?}");
    restored.dispatch(step("of the copy", 2)).unwrap();
    restored.close().unwrap();
    let refused = run(&["backup", "_", "--to", "_"], &[&fixture.session, &to]);
    assert_eq!((refused.code, refused.stdout.as_str()), (2, ""));
    assert!(refused.stderr.contains("is not an older copy of session"), "{}", refused.stderr);
    assert!(refused.stderr.contains("next: nothing was changed"), "{}", refused.stderr);
}

#[test]
fn a_store_is_copied_whole_and_what_cannot_be_copied_stops_nothing_else() {
    let fixture = fixture();
    let store = Store::open_with(fixture.directory.path(), options()).unwrap();
    let damaged = store.create_with(&types(), SessionOptions::default()).unwrap();
    damaged.dispatch(step("damaged", 1)).unwrap();
    damaged.dispatch(step("behind it", 1)).unwrap();
    let (damaged_id, damaged_dir) = (damaged.id(), damaged.dir().to_owned());
    damaged.close().unwrap();
    let elsewhere = tempfile::tempdir().unwrap();
    let to = elsewhere.path().join("copies");

    let copied = json(&run(&["backup", "_", "--to", "_", "--json"], &[fixture.directory.path(), &to]));
    assert_eq!(copied["copied"].as_array().unwrap().len(), 3);
    assert_eq!(Store::open(&to).unwrap().session_ids().unwrap(), store.session_ids().unwrap());

    let segment = damaged_dir.join("0000000000.seg");
    let mut bytes = fs::read(&segment).unwrap();
    let at = bytes.windows(7).position(|window| window == b"damaged").unwrap();
    bytes[at] ^= 1;
    fs::write(&segment, bytes).unwrap();
    let ran = run(&["backup", "_", "--to", "_"], &[fixture.directory.path(), &to]);
    assert_eq!(ran.code, 1, "{ran:?}");
    assert!(ran.stdout.contains(&format!("session {damaged_id}: not copied: ")), "{}", ran.stdout);
    assert_eq!(ran.stdout.lines().count(), 3, "{}", ran.stdout);
    assert!(ran.stderr.contains("1 session could not be copied"), "{}", ran.stderr);
    // The copy from before the damage is unchanged.
    let kept = Store::open(&to).unwrap().read_log(damaged_id).unwrap();
    assert!(kept.records_len() > 2);

    let store = fixture.directory.path();
    let (away, link) = (elsewhere.path().join("away"), elsewhere.path().join("link"));
    std::os::unix::fs::symlink(store, &link).unwrap();
    let listed = || {
        let names = fs::read_dir(store).unwrap().map(|entry| entry.unwrap().file_name());
        names.collect::<std::collections::BTreeSet<_>>()
    };
    let before = listed();
    for within in [
        store.to_owned(),
        store.join("sessions"),
        store.join("sessions/copies"),
        store.join("new/../sessions/copies"),
        store.join("copies"),
        store.join("a/b/c"),
        link.clone(),
        link.join("copies"),
        away.join("../link/copies"),
        fixture.session.join("copies"),
        fixture.session.join("files/copies"),
    ] {
        for from in [
            &fixture.session,
            store,
            &link,
            &link.join("sessions").join(fixture.session.file_name().unwrap()),
        ] {
            let refused = run(&["backup", "_", "--to", "_"], &[from, &within]);
            assert!(refused.code == 2 && refused.stdout.is_empty(), "{refused:?}");
            assert!(
                refused.stderr.contains(&format!("{} is the same as or inside ", within.display())),
                "{refused:?}"
            );
        }
    }
    assert_eq!(listed(), before, "nothing was made");
    assert!(!fixture.session.join("copies").exists() && !store.join("sessions/copies").exists());
    // A session outside of any store cannot be copied into itself either.
    let alone = elsewhere.path().join("alone");
    let status =
        std::process::Command::new("cp").arg("-r").args([&fixture.session, &alone]).status().unwrap();
    assert!(status.success());
    let refused = run(&["backup", "_", "--to", "_"], &[&alone, &alone.join("copies")]);
    assert!(refused.code == 2 && !alone.join("copies").exists(), "{refused:?}");
    let nothing =
        run(&["backup", "_", "--to", "_"], &[&fixture.directory.path().join("nothing"), &to.join("new")]);
    assert!(nothing.code == 2 && !to.join("new").exists(), "{nothing:?}");
}
