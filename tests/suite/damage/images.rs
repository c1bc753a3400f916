//! Unexpected entries in place of images, in a real directory: opening skips them and leaves them
//! unchanged.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use foldlog::log::SegmentSizes;
use foldlog::{BackgroundSync, Durability, Session, State, Store, StoreOptions};
use foldlog_test_support::crash::{Machine, step, write_steps};
use foldlog_test_support::host::{Noted, types};
use uuid::Uuid;

use super::everything::suspend;
use super::flip;

fn store(directory: &Path) -> Store {
    let options = StoreOptions {
        durability: Durability::Process,
        segments: SegmentSizes { first_bytes: 1, max_bytes: 4096, ahead_bytes_min: 0 },
        image_bytes_min: 1,
        background: BackgroundSync::Inline,
        ..StoreOptions::default()
    };
    Store::open_with(directory, options).unwrap()
}

/// Returns a session of several segments, closed with an image of its end, and the directory of its
/// images.
fn imaged(store: &Store) -> (Uuid, State, PathBuf) {
    let session = store.create(&types()).unwrap();
    session.dispatch(step(1)).unwrap();
    write(&session, 40);
    let (id, directory) = (session.id(), session.dir().join("snapshots"));
    let state = session.dynamic().state().unwrap();
    session.close().unwrap();
    (id, state, directory)
}

fn write(session: &Session, notes: u64) {
    for n in 0..notes {
        session.dispatch(Noted { text: format!("{n} {}", "x".repeat(300)) }).unwrap();
    }
}

fn image_of(position: u64) -> String {
    format!("{position:020}.image")
}

/// Returns the entries of a directory with their content; links and long files by their length.
fn listed(directory: &Path) -> BTreeMap<PathBuf, (bool, u64)> {
    let entries = fs::read_dir(directory).unwrap().map(|entry| {
        let path = entry.unwrap().path();
        let metadata = fs::symlink_metadata(&path).unwrap();
        (path, (metadata.is_file(), metadata.len()))
    });
    entries.collect()
}

#[test]
fn whatever_bears_an_images_name_is_passed_over_and_left_alone() {
    let directory = tempfile::tempdir().unwrap();
    let store = store(directory.path());
    let (id, state, images) = imaged(&store);
    let newest = listed(&images).into_keys().next_back().unwrap();
    let position: u64 = newest.file_stem().unwrap().to_str().unwrap().parse().unwrap();
    // Entries before the image: a directory, a link to the image itself, a dangling link, a
    // tebibyte of zeros, a mebibyte of zeros, an empty file; and names that are not an image's.
    fs::create_dir(images.join(image_of(position + 1))).unwrap();
    symlink(&newest, images.join(image_of(position + 2))).unwrap();
    symlink("/nowhere", images.join(image_of(position + 3))).unwrap();
    let files = [(4, 1 << 40), (5, 1 << 20), (6, 0)].map(|(ahead, len)| {
        let path = images.join(image_of(position + ahead));
        fs::File::create(&path).unwrap().set_len(len).unwrap();
        path
    });
    for name in ["99999999999999999999.image", "1.image", "notes.txt", "00000000000000000099.image.new"] {
        fs::write(images.join(name), "no image").unwrap();
    }
    let before = listed(&images);
    let session = store.open_session(id, &types()).unwrap();
    assert_eq!(session.log().recovery().from_image, Some(position.into()));
    assert_eq!(session.log().recovery().dropped_images, files.iter().rev().cloned().collect::<Vec<_>>());
    assert_eq!(session.dynamic().state().unwrap(), state);
    assert_eq!(listed(&images), before, "opening leaves all as it is");
    write(&session, 40);
    let state = session.dynamic().state().unwrap();
    session.close().unwrap();
    let session = store.open_session(id, &types()).unwrap();
    assert_eq!(session.dynamic().state().unwrap(), state);
    assert!(
        session.log().recovery().from_image.is_some_and(|next| next > position.into()),
        "new images are written"
    );
}

/// Whichever byte of an image is wrong, no question is repeated or dropped, and no decision is
/// forgotten.
#[test]
fn each_byte_of_an_image_is_found_and_costs_no_question() {
    let machine = Machine::default().with_images();
    let session = machine.process(Durability::Boundary).create(&types()).unwrap();
    write_steps(&session, 2);
    suspend(&session);
    write_steps(&session, 2);
    let (id, asked, state) =
        (session.id(), session.calls().pending_questions().unwrap(), session.dynamic().state().unwrap());
    session.close().unwrap();
    assert_eq!(asked.len(), 2);
    let images = machine.disk.files().into_iter();
    let image = images.filter(|path| path.extension().is_some_and(|it| it == "image")).max().unwrap();
    let len = machine.disk.read_file(&image).unwrap().len();
    let open = || machine.process(Durability::Boundary).open_read_only(id, &types()).unwrap();
    assert!(open().log().recovery().from_image.is_some_and(|from| from > asked[1].operation.sequence()));
    for at in 0..len {
        flip(&machine, &image, at);
        let session = open();
        assert_eq!(session.log().recovery().dropped_images, std::slice::from_ref(&image), "byte {at}");
        assert!(
            session.calls().pending_questions().unwrap() == asked
                && session.dynamic().state().unwrap() == state,
            "byte {at}"
        );
        drop(session);
        flip(&machine, &image, at);
    }
    assert!(len > 1000, "{len}");
    let whole = open();
    assert_eq!(
        (whole.log().recovery().dropped_images.len(), whole.calls().pending_questions().unwrap()),
        (0, asked)
    );
}

/// The engine creates and reads files only in a real directory of its own.
#[test]
fn a_directory_of_images_that_is_a_link_or_a_file_is_done_without() {
    let directory = tempfile::tempdir().unwrap();
    let store = store(directory.path());
    for link in [true, false] {
        let (id, state, images) = imaged(&store);
        let elsewhere = directory.path().join(format!("elsewhere {link}"));
        fs::rename(&images, &elsewhere).unwrap();
        match link {
            true => symlink(&elsewhere, &images).unwrap(),
            false => fs::write(&images, "no directory").unwrap(),
        }
        let before = listed(&elsewhere);
        let session = store.open_session(id, &types()).unwrap();
        assert_eq!(
            (session.log().recovery().from_image, session.log().recovery().dropped_images.len()),
            (None, 0)
        );
        assert_eq!(session.dynamic().state().unwrap(), state);
        write(&session, 40);
        let state = session.dynamic().state().unwrap();
        session.close().unwrap();
        assert_eq!(listed(&elsewhere), before, "nothing is written behind a link");
        assert_eq!(store.open_session(id, &types()).unwrap().dynamic().state().unwrap(), state);
    }
}

/// A restored backup has images of a longer log, and these counted as the newest. Each new image
/// was removed at once, and no opening used one again.
#[test]
fn images_ahead_of_a_restored_log_make_way_for_its_own() {
    let directory = tempfile::tempdir().unwrap();
    let store = store(directory.path());
    let (id, _, images) = imaged(&store);
    let newest = listed(&images).into_keys().next_back().unwrap();
    for position in [1_000_000, 2_000_000] {
        fs::copy(&newest, images.join(image_of(position))).unwrap();
    }
    // The same log up to a position before its first image.
    let bytes = fs::read(&newest).unwrap();
    for image in listed(&images).into_keys() {
        let mut damaged = bytes.clone();
        damaged[100] ^= 1;
        fs::write(image, damaged).unwrap();
    }
    let session = store.open_session(id, &types()).unwrap();
    assert_eq!(session.log().recovery().from_image, None);
    assert!(session.log().recovery().dropped_images.len() >= 3);
    write(&session, 40);
    let position = session.log().position().unwrap();
    session.close().unwrap();
    let session = store.open_session(id, &types()).unwrap();
    assert!(
        session.log().recovery().from_image.is_some_and(|next| next > position - 40),
        "{:?}",
        session.log().recovery()
    );
}
