//! Objects of captures, and damage by a disk or by other users.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

use crate::room::Room;

/// Creates a session with some captures; returns its directory of captures and the path of each
/// object in it.
pub fn with_objects() -> (Room, PathBuf, Vec<PathBuf>) {
    let room = Room::new();
    room.call("printf one > page; mkdir d; printf other > d/other; chmod 700 d/other");
    room.call("printf two > page");
    let captures = room.session().log().captures_dir();
    let all = objects(&captures).into_iter().collect();
    (room, captures, all)
}

/// Returns the objects of the captures, by their paths in the directory of captures.
pub fn objects(captures: &Path) -> BTreeSet<PathBuf> {
    let directories = fs::read_dir(captures.join("objects")).unwrap().map(|entry| entry.unwrap().path());
    let directories =
        directories.filter(|directory| directory.file_name().is_some_and(|name| name.len() == 2));
    let files =
        directories.flat_map(|directory| fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()));
    files.map(|path| path.strip_prefix(captures).unwrap().to_owned()).collect()
}

pub fn flip(path: &Path) {
    let mut bytes = fs::read(path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
    fs::write(path, bytes).unwrap();
}

/// Entries that others may put in place of a file or a directory.
pub const IN_PLACES: [&str; 4] = ["a directory", "a symbolic link", "a pipe", "a regular file"];

/// Puts an entry of this kind at the path.
pub fn put(path: &Path, what: &str) {
    match what {
        "a directory" => fs::create_dir_all(path.join("somebody's")).unwrap(),
        "a symbolic link" => symlink("/dev/zero", path).unwrap(),
        "a pipe" => mkfifo(path, Mode::S_IRWXU).unwrap(),
        _ => fs::write(path, "somebody's").unwrap(),
    }
}

/// Removes an entry that [`put`] made.
pub fn clear(path: &Path) {
    match fs::symlink_metadata(path).unwrap().is_dir() {
        true => fs::remove_dir_all(path).unwrap(),
        false => fs::remove_file(path).unwrap(),
    }
}
