//! Notification of renames into a directory.

use std::fmt::Debug;
use std::io;
use std::mem::MaybeUninit;
use std::path::Path;
use std::sync::Arc;
use std::thread;

use rustix::fd::OwnedFd;
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::io::Errno;

/// Watches a directory until it is dropped.
pub trait DirectoryWatch: Send + Sync + Debug {}

/// Watches a directory with inotify. A thread sleeps until there is a notification.
#[derive(Debug)]
pub(super) struct InotifyWatch {
    notifications: Arc<OwnedFd>,
    watch: i32,
}

impl DirectoryWatch for InotifyWatch {}

/// Calls `changed` whenever a rename puts a file into the directory, until the returned value is
/// dropped.
pub(super) fn watch(directory: &Path, changed: Box<dyn Fn() + Send>) -> io::Result<InotifyWatch> {
    let notifications = Arc::new(inotify::init(CreateFlags::CLOEXEC)?);
    let what = WatchFlags::MOVED_TO | WatchFlags::ONLYDIR | WatchFlags::DONT_FOLLOW;
    let watch = inotify::add_watch(&notifications, directory, what)?;
    let watched = Arc::clone(&notifications);
    thread::Builder::new().name("foldlog-watch".to_owned()).spawn(move || {
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut events = inotify::Reader::new(&watched, &mut buffer);
        loop {
            match events.next() {
                // The watch or the directory was removed.
                Ok(event) if event.events().contains(ReadFlags::IGNORED) => return,
                Ok(_) => changed(),
                Err(Errno::INTR) => {}
                Err(_) => return,
            }
        }
    })?;
    Ok(InotifyWatch { notifications, watch })
}

impl Drop for InotifyWatch {
    fn drop(&mut self) {
        // This notifies the thread, which then ends.
        let _ = inotify::remove_watch(&self.notifications, self.watch);
    }
}
