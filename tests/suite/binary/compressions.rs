//! Compressed sessions: the binary's verbs print the same as for uncompressed ones.

use std::ffi::OsString;

use foldlog::log::SegmentSizes;
use foldlog::{Store, StoreOptions};
use foldlog_test_support::host::types;
use foldlog_test_support::workload::write_text;
use foldlog_tests::verbs::{foldlog, foldlog_following};

#[test]
fn the_verbs_of_the_binary_say_the_same_of_a_compressed_session() {
    let directory = tempfile::tempdir().unwrap();
    let sizes = SegmentSizes { first_bytes: 128 << 10, max_bytes: 128 << 10, ahead_bytes_min: 0 };
    let store = Store::open_with(
        directory.path().join("store"),
        StoreOptions { segments: sizes, ..StoreOptions::default() },
    )
    .unwrap();
    let session = store.create(&types()).unwrap();
    write_text(&session, 13, 500);
    let (id, dir) = (session.id(), session.dir().to_owned());
    session.close().unwrap();
    let run = |arguments: &[&str]| {
        let ran = foldlog(arguments.iter().map(|argument| match *argument {
            "DIR" => dir.clone().into_os_string(),
            "OUT" => directory.path().join("out").into_os_string(),
            other => OsString::from(other),
        }));
        assert_eq!(ran.code, 0, "{arguments:?}: {}", ran.stderr);
        ran
    };
    let compact = |codec: &str| run(&["compact", "DIR", "--keep", "all", "--compress", codec]);
    // This finishes the last segment, whose reason is recorded only once.
    compact("zstd");
    let again = compact("none");
    assert!(again.stdout.contains("decompressed"), "{}", again.stdout);
    let asked: [&[&str]; 11] = [
        &["verify", "DIR", "--json"],
        &["show", "DIR"],
        &["show", "DIR", "--json", "--from", "300", "--to", "420"],
        &["tail", "DIR", "-n", "30"],
        &["state", "DIR", "--json"],
        &["state", "DIR", "--at", "333"],
        &["diff", "DIR", "100", "700"],
        &["replay", "DIR"],
        &["ledger", "DIR"],
        &["export", "DIR", "--format", "jsonl"],
        &["export", "DIR", "--format", "snapshot-json", "--at", "500"],
    ];
    let said = || -> Vec<_> {
        asked
            .iter()
            .map(|arguments| {
                foldlog(arguments.iter().map(|argument| match *argument {
                    "DIR" => dir.clone().into_os_string(),
                    other => OsString::from(other),
                }))
            })
            .collect()
    };
    let expected = said();
    let wrong: Vec<_> = expected
        .iter()
        .zip(&asked)
        .filter(|(ran, _)| ran.code > 1)
        .map(|(ran, asked)| format!("{asked:?}: {}", ran.stderr))
        .collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
    for codec in ["zstd", "lz4"] {
        let done = compact(codec);
        assert!(done.stdout.contains("compressed") && !done.stdout.contains("drop"), "{}", done.stdout);
        for ((before, after), asked) in expected.iter().zip(said()).zip(&asked) {
            assert!(*before == after, "{codec}, {asked:?}: {}{}", after.stdout, after.stderr);
        }
        let stats = run(&["stats", "DIR", "--json"]).stdout;
        assert!(
            stats.contains(&format!("\"compression\":\"{codec}\""))
                || stats.contains(&format!("\"compression\": \"{codec}\"")),
            "{stats}"
        );
        let mut looks = 0;
        let followed =
            foldlog_following(["tail".into(), dir.clone().into_os_string(), "--follow".into()], || {
                looks += 1;
                looks < 2
            });
        assert_eq!(followed.code, 0, "{}", followed.stderr);
    }
    let json = run(&["compact", "DIR", "--keep", "all", "--compress", "none", "--json"]).stdout;
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["compressed"]["compression"], "none");
    assert!(json["compressed"]["bytes_after"].as_u64() > json["compressed"]["bytes_before"].as_u64());
    assert_eq!((&json["dropped"], &json["through"]), (&0.into(), &serde_json::Value::Null));
    let planned = run(&["compact", "DIR", "--keep", "all", "--compress", "zstd", "--dry-run"]);
    assert!(planned.stdout.contains("would be compressed"), "{}", planned.stdout);
    assert!(store.open_session(id, &types()).is_ok());
}
