//! `foldlog tail`: prints the same as `show`, and then new records while another process writes.

use std::fs;
use std::path::{Path, PathBuf};

use foldlog::log::SegmentSizes;
use foldlog::{Durability, Session, Store, StoreOptions};
use foldlog_test_support::child::{self, Started};
use foldlog_test_support::host::types;
use foldlog_test_support::runs::Json;
use foldlog_tests::verbs::{foldlog, foldlog_following};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use uuid::Uuid;

use super::{fixture, normal, options, step};

fn small() -> StoreOptions {
    StoreOptions {
        segments: SegmentSizes { first_bytes: 4096, max_bytes: 4096, ahead_bytes_min: 0 },
        ..options()
    }
}

fn write_steps(session: &Session, steps: u64) {
    for number in 0..steps {
        session.dispatch(step(&format!("step {number} {}", "x".repeat(200)), 1)).unwrap();
    }
}

fn segments(dir: &Path) -> usize {
    let names = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    names.filter(|path| path.extension().is_some_and(|extension| extension == "seg")).count()
}

/// Returns the lines that `show` prints of a session, without its headings.
fn shown(dir: &Path) -> Vec<String> {
    let ran = foldlog(["show".as_ref(), dir.as_os_str()]);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    ran.stdout.lines().skip(1).map(str::to_owned).collect()
}

#[test]
fn tail_prints_what_show_prints() {
    let fixture = fixture();
    for (tail, show) in [
        ("tail SESSION -n 100", "show SESSION"),
        ("tail SESSION --from 0", "show SESSION"),
        ("tail SESSION --from 0 --follow", "show SESSION"),
        ("tail SESSION --from 11", "show SESSION --from 11"),
        ("tail SESSION -n 100 --json", "show SESSION --json"),
        ("tail SESSION --lines 5 --json", "show SESSION --from 10 --json"),
        ("tail FORK -n 4 -f", "show FORK --from 6"),
        ("tail FORK --from 0 --json", "show FORK --json"),
    ] {
        let (tail, show) = (fixture.run(tail), fixture.run(show));
        assert!(show.code == 0 && show.stdout.lines().count() > 1);
        assert_eq!(tail, show);
    }
    insta::assert_snapshot!(fixture.transcript(&[
        "tail SESSION",
        "tail SESSION -n 2 --json",
        "tail SESSION -n 0",
        "tail SESSION --from 99",
        "tail SESSION --from 99 --follow",
        "tail NOTHING",
        "tail STORE --follow",
    ]));
}

#[test]
fn tail_prints_what_a_failed_call_wrote_as_abandoned_as_show_does() {
    let fixture = super::operations::fixture();
    let (tail, show) = (fixture.run("tail SESSION -n 100"), fixture.run("show SESSION"));
    let abandoned = show.stdout.lines().filter(|line| line.ends_with("abandoned")).count();
    assert!(abandoned > 1, "{}", show.stdout);
    assert_eq!(tail.stdout, show.stdout);
}

#[test]
fn follow_prints_what_is_written_later_over_turns_and_closings() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open_with(directory.path(), small()).unwrap();
    let session = store.create(&types()).unwrap();
    let (id, dir) = (session.id(), session.dir().to_owned());
    write_steps(&session, 30);
    let (mut session, mut round) = (Some(session), 0_u64);
    let ran = foldlog_following(["tail".as_ref(), "--follow".as_ref(), dir.as_os_str()], || {
        let open = session.take().unwrap();
        if round > 0 {
            write_steps(&open, round);
        }
        session = Some(if round % 4 == 3 {
            open.close().unwrap();
            store.open_session(id, &types()).unwrap()
        } else {
            open
        });
        round += 1;
        round < 12
    });
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""));
    assert!(segments(&dir) > 4);
    // Records from the very last pause are no longer printed.
    let all = shown(&dir);
    let printed: Vec<&str> = ran.stdout.lines().skip(1).collect();
    let first = 32 - 10;
    assert_eq!(printed, all[first..all.len() - 11]);
}

#[test]
fn an_attested_record_that_is_damaged_ends_following_with_1() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open_with(directory.path(), options()).unwrap();
    let session = store.create(&types()).unwrap();
    write_steps(&session, 3);
    let dir = session.dir().to_owned();
    let mut round = 0;
    let ran = foldlog_following(["tail".as_ref(), "-f".as_ref(), dir.as_os_str()], || {
        round += 1;
        if round == 2 {
            write_steps(&session, 4);
            session.sync().unwrap();
            let (offset, _) = super::damaged::place(&dir, 7);
            super::damaged::flip(&dir.join("0000000000.seg"), offset + 40);
        }
        round < 5
    });
    assert_eq!(ran.code, 1);
    assert_eq!(ran.stdout.lines().count(), 1 + 7, "{}", ran.stdout);
    let told = normal(&ran.stderr, directory.path());
    let whole = normal(&foldlog(["show".as_ref(), dir.as_os_str()]).stderr, directory.path());
    assert_eq!(told, whole);
    assert!(
        told.contains("record 7 (checksum [crc], expected [crc])") && told.contains("  next: "),
        "{told}"
    );
    // The output without following is the same.
    let again = foldlog(["tail".as_ref(), dir.as_os_str()]);
    assert_eq!((again.code, normal(&again.stderr, directory.path())), (1, told));
}

#[test]
fn a_session_deleted_while_it_is_followed_is_said_to_be() {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open_with(directory.path(), options()).unwrap();
    let session = store.create(&types()).unwrap();
    let (id, dir) = (session.id(), session.dir().to_owned());
    session.close().unwrap();
    let mut round = 0;
    let ran = foldlog_following(["tail".as_ref(), "-f".as_ref(), dir.as_os_str()], || {
        round += 1;
        if round == 3 {
            store.delete(id).unwrap();
        }
        round < 9
    });
    assert_eq!((ran.code, round), (2, 3));
    assert!(ran.stderr.contains("was deleted while it was read"), "{}", ran.stderr);
}

/// Copies a session's segments as a kill would leave them.
fn copied(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        fs::write(to.join(path.file_name().unwrap()), fs::read(&path).unwrap()).unwrap();
    }
}

/// Two lives of one log: the follower saw one, and the disk kept the other.
#[test]
fn a_recovery_that_put_other_records_in_place_is_said_on_one_line() {
    let directory = tempfile::tempdir().unwrap();
    let store = |name: &str| Store::open_with(directory.path().join(name), options()).unwrap();
    let first = store("first");
    let session = first.create(&types()).unwrap();
    session.dispatch(step("before", 1)).unwrap();
    let (id, dir) = (session.id(), session.dir().to_owned());
    session.close().unwrap();
    let life = |name: &str, title: &str, steps: u8| {
        let store = store(name);
        copied(&dir, &store.session_dir(id));
        let session = store.open_session(id, &types()).unwrap();
        (0..steps).for_each(|part| session.dispatch(step(title, part)).map(drop).unwrap());
        let killed = directory.path().join(format!("{name}-killed/sessions/{id}"));
        copied(&store.session_dir(id), &killed);
        killed
    };
    let seen = life("old", "that was lost", 3);
    let kept = life("new", "that was kept", 1);
    let mut round = 0;
    let ran = foldlog_following(["tail".as_ref(), "-f".as_ref(), seen.as_os_str()], || {
        round += 1;
        if round == 2 {
            let session = store("new-killed").open_session(id, &types()).unwrap();
            session.dispatch(step("and on", 9)).unwrap();
            copied(&kept, &seen);
        }
        round < 4
    });
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let note = format!(
        "note: session {id} was recovered: records 3 to 5, as printed above, are no longer part of it; the records \
         that replace them follow\n"
    );
    assert_eq!(ran.stderr, note);
    let sequences: Vec<&str> = ran.stdout.lines().skip(1).map(|line| line[..8].trim()).collect();
    assert_eq!(sequences, ["0", "1", "2", "3", "4", "5", "3", "4"]);
    assert_eq!(ran.stdout.lines().skip(7).collect::<Vec<_>>(), shown(&seen)[3..]);
}

/// The child's part: follows a session with the process's own streams and signals.
#[test]
#[ignore = "a part of another test, which runs it in a process of its own"]
fn part_of_a_child_that_follows() {
    let Some(argument) = child::argument() else { return };
    let (code_file, dir) = argument.split_once(' ').unwrap();
    let code = foldlog_cli::output::with_process(|output| {
        let arguments = ["foldlog", "tail", "--json", "--from", "0", "--follow", dir];
        foldlog_cli::run(arguments.map(Into::into), output)
    });
    fs::write(code_file, code.to_string()).unwrap();
    // The test runner would print more output, possibly into a closed pipe.
    std::process::exit(0);
}

/// The child's part: writes a session with small segments until it is killed.
#[test]
#[ignore = "a part of another test, which runs it in a process of its own"]
fn part_of_a_child_that_writes_small_segments() {
    let Some(argument) = child::argument() else { return };
    let store = Store::open_with(argument, StoreOptions { seed: None, ..small() }).unwrap();
    let session = store.create(&types()).unwrap();
    child::tell("session", session.id());
    loop {
        write_steps(&session, 1);
        child::tell("kept", session.log().position().unwrap());
    }
}

fn follower(directory: &Path, dir: &Path) -> (Started, PathBuf) {
    let code = directory.join("code");
    let _ = fs::remove_file(&code);
    let argument = format!("{} {}", code.display(), dir.display());
    (child::start("binary::tail::part_of_a_child_that_follows", &argument), code)
}

/// Reads a follower's output through a record; each line has to be the next record.
fn read_through(following: &mut Started, next: &mut u64, last: u64) {
    while *next <= last {
        let line = following.line().expect("the follower goes on");
        // The test runner's output comes first, and the first record may follow it on the same
        // line.
        let Some(at) = line.find('{') else { continue };
        let sequence = Json::parse(&line[at..]).get("sequence").cloned();
        assert_eq!(sequence, Some(Json::Scalar((*next).into())));
        *next += 1;
    }
}

#[test]
fn another_process_is_followed_over_turns_a_kill_and_a_recovery_until_a_signal() {
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("store");
        let mut writing =
            child::start("binary::tail::part_of_a_child_that_writes_small_segments", path.to_str().unwrap());
        let id: Uuid = writing.hear("session").unwrap().parse().unwrap();
        let dir = path.join("sessions").join(id.to_string());
        let (mut following, code) = follower(directory.path(), &dir);
        let mut next = 0;
        read_through(&mut following, &mut next, 60);
        writing.kill();
        let mut kept = 0;
        while let Some(position) = writing.hear("kept") {
            kept = position.parse().unwrap();
        }
        read_through(&mut following, &mut next, kept);
        // The next process recovers the unattested records, if a sync did not come just before, and
        // continues.
        let store =
            Store::open_with(&path, StoreOptions { durability: Durability::Boundary, ..small() }).unwrap();
        let session = store.open_session(id, &types()).unwrap();
        let before = session.log().position().unwrap();
        assert!(!session.log().recovery().closed);
        write_steps(&session, 40);
        let last = session.log().position().unwrap();
        assert_eq!(last, before + 40);
        read_through(&mut following, &mut next, last.get());
        assert!(segments(&dir) > 6);
        kill(Pid::from_raw(following.id().try_into().unwrap()), signal).unwrap();
        following.ended();
        assert_eq!(fs::read_to_string(&code).unwrap(), "0", "{signal}");
    }
}

#[test]
fn a_follower_whose_reader_goes_away_ends_although_nothing_comes() {
    let fixture = fixture();
    let (mut following, code) = follower(fixture.directory.path(), &fixture.session);
    read_through(&mut following, &mut 0, 14);
    following.stop_reading();
    following.ended();
    assert_eq!(fs::read_to_string(&code).unwrap(), "0");
}
