//! What a power cut may lose of a failed call.

use std::fs;

use foldlog::Durability;
use foldlog::filesystem::WorkspaceNotice;
use foldlog_test_support::child;
use rustix::fs::{XattrFlags, getxattr, setxattr};

use super::swapped::{Place, Site, Swap, vandal};
use super::*;

#[test]
#[ignore = "a part of another test, which runs it in a process of its own"]
fn part_of_a_child_whose_call_fails() {
    let Some(argument) = child::argument() else { return };
    let [durability, id, directory] = argument.splitn(3, ' ').collect::<Vec<_>>()[..] else {
        panic!("{argument}")
    };
    let durability = if durability == "boundary" { Durability::Boundary } else { Durability::Process };
    let site = Site(directory.into());
    let session = site.store().open_session_at(id.parse().unwrap(), &types(), durability).unwrap();
    assert!(!vandal(&site.run(session), "half", Swap::No, Then::Fail).unwrap().success);
}

/// A restore synced nothing, and the following end record was durable. A power cut then left files
/// that were empty or still the tool's, and a log that recorded them as restored.
#[test]
fn what_a_failed_call_put_back_is_synced_before_its_end_where_the_session_promises_so_much() {
    if !child::is_traced_here() {
        return;
    }
    let place = Place::new();
    let runner = place.run(place.store().create(&types()).unwrap());
    let id = runner.state().session().id();
    vandal(&runner, "before", Swap::No, Then::Succeed).unwrap();
    drop(runner);
    let traced = place.0.join("traced");
    let syncs = |durability: &str| {
        let calls = "trace=fsync,fdatasync,syncfs,sync_file_range,msync";
        let tracing = ["-y", "-o", traced.to_str().unwrap(), "-e", calls];
        let argument = format!("{durability} {id} {}", place.0.display());
        let part = "tools::synced::part_of_a_child_whose_call_fails";
        assert!(child::start_traced(&tracing, part, &argument).passed());
        assert_eq!(place.page(), "before");
        fs::read_to_string(&traced).unwrap()
    };
    let within = format!("<{}", place.root().display());
    let (process, boundary) = (syncs("process"), syncs("boundary"));
    assert!(!process.contains("syncfs("), "{process}");
    assert!(boundary.lines().any(|line| line.contains("syncfs(") && line.contains(&within)), "{boundary}");
    let (_, behind) = boundary.rsplit_once(&within).unwrap();
    // The log is mapped.
    assert!(behind.contains("msync("), "{boundary}");
}

/// Replaces the boot in the mark by a past one.
fn set_mark_of_another_boot(place: &Place) {
    const MARK: &str = "user.foldlog.work";
    let mut bytes = vec![0; 5_000];
    let len = getxattr(place.root(), MARK, &mut bytes[..]).expect("the directory takes extended attributes");
    let text = String::from_utf8(bytes[..len].to_vec()).unwrap();
    let mut words: Vec<String> = text.splitn(8, ' ').map(str::to_owned).collect();
    words[4] = Uuid::from_u128(7).to_string();
    setxattr(place.root(), MARK, words.join(" ").as_bytes(), XattrFlags::empty()).unwrap();
}

/// At `Durability::Process` a workspace is never synced, and a power cut may take any part of it.
/// The loss was not reported.
#[test]
fn after_another_boot_the_first_call_tells_what_is_not_as_it_was_captured() {
    for (committed, last) in [(true, "last"), (false, "before")] {
        let place = Place::new();
        let runner = place.run(place.store().create(&types()).unwrap());
        let id = runner.state().session().id();
        vandal(&runner, "before", Swap::No, Then::Succeed).unwrap();
        vandal(&runner, "last", Swap::No, if committed { Then::Succeed } else { Then::Fail }).unwrap();
        drop(runner);
        assert_eq!(place.page(), last);
        let first_call = || {
            let files = place.files();
            let runner = place.run_on(place.store().open_session(id, &types()).unwrap(), Arc::clone(&files));
            vandal(&runner, last, Swap::No, Then::Fail).unwrap();
            files.take_notices()
        };
        set_mark_of_another_boot(&place);
        assert_eq!(first_call(), [], "nothing was lost");
        set_mark_of_another_boot(&place);
        fs::write(place.root().join("page"), "").unwrap();
        fs::remove_dir_all(place.root().join("src/deep")).unwrap();
        let paths = ["page", "src/deep", "src/deep/file"].map(str::to_owned).to_vec();
        assert_eq!(first_call(), [WorkspaceNotice::ChangedSinceBoot { paths, more: 0 }]);
        // The next call starts from the present files, and so does another process.
        assert_eq!(first_call(), []);
        // The captures may be lost as well. For unchanged files, the next capture would write them
        // again.
        set_mark_of_another_boot(&place);
        fs::write(place.root().join("page"), "something else").unwrap();
        fs::remove_dir_all(place.0.join("snapshots")).unwrap();
        let told = first_call();
        assert!(matches!(told[..], [WorkspaceNotice::UnknownSinceBoot { .. }]), "{told:?}");
    }
}
