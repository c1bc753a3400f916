//! The memory limit of a verb for the requirements of a log. `tests/memory/verbs.rs` measures the
//! actual use.

use foldlog::inspect::{LogReader, ReadOptions};
use foldlog::{Error, SessionOptions, Store};
use foldlog_test_support::host::types;
use foldlog_test_support::runs::Json;
use foldlog_tests::verbs::foldlog;

use super::{options, step};

/// One session whose names alone took more memory than available ended `sessions`, and the others
/// were not shown.
#[test]
fn a_session_over_its_budget_is_a_row_that_says_so_and_the_others_follow() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open_with(directory.path(), options()).unwrap();
    for tags in [0, 200, 1] {
        let created = (0..tags).fold(SessionOptions::default(), |created, tag| {
            created.tag(format!("tag {tag}"), "x".repeat(100))
        });
        let session = store.create_with(&types(), created).unwrap();
        for part in 0..200 {
            session.dispatch(step("read", part)).unwrap();
        }
        session.close().unwrap();
    }
    let root = directory.path().as_os_str();
    let listed =
        foldlog(["sessions".as_ref(), root, "--json".as_ref(), "--memory".as_ref(), "20000".as_ref()]);
    assert_eq!(listed.code, 2, "{}", listed.stderr);
    let rows: Vec<Json> = listed.stdout.lines().map(Json::parse).collect();
    assert_eq!(rows.len(), 3, "{}", listed.stdout);
    let refused = |row: &&Json| row.get("error").is_some();
    assert_eq!(rows.iter().filter(refused).count(), 1, "{}", listed.stdout);
    assert!(listed.stdout.contains("bytes of memory"), "{}", listed.stdout);
    let for_people = foldlog(["sessions".as_ref(), root, "--memory".as_ref(), "20000".as_ref()]);
    assert_eq!(for_people.stdout.lines().count(), 4, "{}", for_people.stdout);
    assert!(for_people.stdout.contains("cannot be read"), "{}", for_people.stdout);
    assert_eq!(foldlog(["sessions".as_ref(), root]).code, 0);

    // A verb that needs slices refuses, names the reason, and suggests how to continue.
    let dir = store.session_dir(store.session_ids().unwrap()[0]);
    let options = ReadOptions { memory_bytes: Some(100), ..ReadOptions::default() };
    let storage = std::sync::Arc::new(foldlog::storage::FileStorage::new());
    match LogReader::open_with(storage, &dir, options) {
        Err(Error::OverBudget { session_dir, needed, budget, .. }) => {
            assert_eq!((session_dir, budget), (dir.clone(), 100));
            assert!(needed > 100, "{needed}");
        }
        other => panic!("{other:?}"),
    }
    for verb in ["state", "verify", "replay", "stats"] {
        let ran = foldlog([verb.as_ref(), dir.as_os_str(), "--memory".as_ref(), "100".as_ref()]);
        assert_eq!(ran.code, 2, "{verb}: {}{}", ran.stdout, ran.stderr);
        assert!(ran.stderr.contains("--memory"), "{verb}: {}", ran.stderr);
        for (enough, code) in [("64MiB", 0), ("64M", 0), ("1G", 0), ("64MB", 2), ("MiB", 2), ("-1", 2)] {
            let ran = foldlog([verb.as_ref(), dir.as_os_str(), "--memory".as_ref(), enough.as_ref()]);
            assert_eq!(ran.code, code, "{verb} {enough}: {}", ran.stderr);
        }
        assert_eq!(foldlog([verb.as_ref(), dir.as_os_str()]).code, 0, "{verb}");
    }
}

/// Two items of a million small values each were decoded as a whole for the comparison, at 32 bytes
/// or more for each stored byte.
#[test]
fn items_of_many_small_values_are_compared_in_as_much_memory_as_there_is() {
    let directory = tempfile::tempdir().unwrap();
    let session = Store::open_with(directory.path(), options()).unwrap().create(&types()).unwrap();
    let dir = session.dir().to_owned();
    session.dispatch(step(&"x".repeat(3_000), 0)).unwrap();
    session.dispatch(Many(vec![0; 1 << 20])).unwrap();
    let at = session.log().position().unwrap().to_string();
    session.close().unwrap();
    let diff = |memory: &str| {
        let words = ["diff".as_ref(), dir.as_os_str(), "0".as_ref(), at.as_ref()];
        foldlog(words.into_iter().chain(["--memory".as_ref(), memory.as_ref()]))
    };
    let refused = diff("30000000");
    assert!(refused.code == 2 && refused.stderr.contains("--memory"), "{refused:?}");
    let told = diff("100000000");
    assert!(told.code == 0 && told.stdout.contains("many"), "{}", told.stderr);
}

/// An item that contains only small values.
#[derive(serde::Serialize, serde::Deserialize)]
struct Many(Vec<u8>);

impl foldlog::Event for Many {
    const NAME: &'static str = "many";
}
