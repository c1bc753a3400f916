//! What a file bears beside its content: owner, permissions, extended attributes and the time of its last change.
//!
//! They are given back in this order, since each may undo what follows it: owner, permissions, attributes, time. What
//! this process may not give back is told, and nothing is given that means more under another owner: a file that cannot
//! be given back to its owner loses its set-user-ID and set-group-ID bits and its capabilities.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use rustix::fs::{
    AtFlags, Gid, Mode, Timespec, Timestamps, UTIME_OMIT, Uid, XattrFlags, chownat, fchmod, fchown,
    fgetxattr, flistxattr, fremovexattr, fsetxattr, futimens, utimensat,
};
use rustix::io::Errno;

use super::manifest::{Attributes, Owner, Stat, escape_path};
use crate::sabotage::{self, Breakage};

/// What Linux lets a file's list of attributes be long at most, and a value.
const LIST_BYTES_MAX: usize = 64 << 10;

const SET_UID: u32 = 0o4000;
const SET_GID: u32 = 0o2000;
const CAPABILITY: &[u8] = b"security.capability";

/// Whether an attribute is the file's own: not foldlog's mark, and not the label that a security module gives.
fn is_kept(name: &[u8]) -> bool {
    if name.starts_with(b"user.foldlog.") {
        return false;
    }
    let system = name.starts_with(b"security.") || name.starts_with(b"system.");
    !system || [CAPABILITY, b"system.posix_acl_access", b"system.posix_acl_default"].contains(&name)
}

/// Reads the extended attributes of what is open. A file system that has none is no error.
pub(super) fn read(file: impl AsFd) -> Result<Attributes, Errno> {
    let mut short = [0; 512];
    let long;
    let list = match flistxattr(&file, &mut short[..]) {
        Ok(0) | Err(Errno::OPNOTSUPP | Errno::NOSYS) => return Ok(None),
        Ok(len) => short.get(..len).unwrap_or_default(),
        Err(Errno::RANGE) => {
            let mut list = vec![0; LIST_BYTES_MAX];
            let len = flistxattr(&file, &mut list[..])?;
            list.truncate(len);
            long = list;
            &long
        }
        Err(errno) => return Err(errno),
    };
    let mut found = Vec::new();
    for name in list.split(|byte| *byte == 0).filter(|name| !name.is_empty() && is_kept(name)) {
        let mut value = vec![0; LIST_BYTES_MAX];
        match fgetxattr(&file, name, &mut value[..]) {
            Ok(len) => {
                value.truncate(len);
                value.shrink_to_fit();
                found.push((name.to_vec(), value));
            }
            // It went meanwhile, or is not this process's to read.
            Err(Errno::NODATA | Errno::ACCESS | Errno::PERM | Errno::OPNOTSUPP) => {}
            Err(errno) => return Err(errno),
        }
    }
    found.sort();
    Ok((!found.is_empty()).then(|| Arc::new(found)))
}

/// What something is to bear.
#[derive(Clone, Debug)]
pub(super) struct WantedAttributes {
    pub(super) permissions: u32,
    /// `None`, as the next two, where the snapshot does not say.
    pub(super) owner: Option<Owner>,
    pub(super) attributes: Option<Attributes>,
    pub(super) modified_ns: Option<i64>,
}

/// What is given something.
pub(super) enum Target<'a> {
    /// A file or a directory.
    Opened(BorrowedFd<'a>),
    /// A link, by its directory and its name.
    Link(BorrowedFd<'a>, &'a [u8]),
}

impl Target<'_> {
    fn chown(&self, uid: Option<u32>, gid: Option<u32>) -> Result<(), Errno> {
        let (uid, gid) = (uid.map(Uid::from_raw), gid.map(Gid::from_raw));
        match self {
            Target::Opened(file) => fchown(file, uid, gid),
            Target::Link(directory, name) => chownat(directory, *name, uid, gid, AtFlags::SYMLINK_NOFOLLOW),
        }
    }

    fn set_time(&self, modified_ns: i64) -> Result<(), Errno> {
        let times = Timestamps {
            last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
            last_modification: Timespec {
                tv_sec: modified_ns.div_euclid(1_000_000_000),
                tv_nsec: modified_ns.rem_euclid(1_000_000_000),
            },
        };
        match self {
            Target::Opened(file) => futimens(file, &times),
            Target::Link(directory, name) => utimensat(directory, *name, &times, AtFlags::SYMLINK_NOFOLLOW),
        }
    }
}

impl WantedAttributes {
    /// Whether something bears it already.
    pub(super) fn is_borne_by(&self, stat: &Stat, attributes: &Attributes, is_link: bool) -> bool {
        let WantedAttributes { permissions, owner, attributes: wanted, modified_ns } = self;
        (is_link || stat.permissions() == *permissions)
            && owner.is_none_or(|owner| owner == stat.owner)
            && (is_link || wanted.as_ref().is_none_or(|wanted| wanted == attributes))
            && modified_ns.is_none_or(|ns| ns == stat.modified_ns)
    }

    /// Gives it to something that bears `stat` and `attributes`, and tells what could not be given.
    ///
    /// # Errors
    ///
    /// Where the permissions cannot be changed.
    pub(super) fn give(
        &self,
        target: &Target<'_>,
        stat: &Stat,
        attributes: &Attributes,
    ) -> Result<Vec<String>, Errno> {
        let mut told = Vec::new();
        let owner = self.give_owner(target, stat.owner, &mut told);
        if let Target::Opened(file) = target {
            let lost = self.lost_bits(owner);
            let permissions = self.permissions & !lost;
            if lost != 0 {
                told.push("its set-user-ID and set-group-ID bits are left off".to_owned());
            }
            // A new owner takes these bits away.
            if stat.permissions() != permissions || owner != stat.owner {
                fchmod(file, Mode::from_raw_mode(permissions))?;
            }
            if let Some(wanted) = &self.attributes
                && !sabotage::is(Breakage::AttributesNotRestored)
            {
                let may_have_more = self.owner == Some(owner);
                give_attributes(*file, wanted, attributes, may_have_more, &mut told);
            }
        }
        match self.modified_ns {
            // A capture keeps 64 bits of nanoseconds.
            Some(i64::MIN | i64::MAX) => {
                told.push(
                    "its time of change was before 1677 or after 2262, which no capture keeps".to_owned(),
                );
            }
            Some(ns) => {
                if let Err(errno) = target.set_time(ns) {
                    told.push(format!("its time of change: {}", describe_errno(errno)));
                }
            }
            None => {}
        }
        Ok(told)
    }

    /// Gives a file its owner, tells if that fails, and returns whom the file belongs to then.
    fn give_owner(&self, target: &Target<'_>, present: Owner, told: &mut Vec<String>) -> Owner {
        let mut owner = present;
        let Some(wanted) = self.owner.filter(|owner| *owner != present) else { return owner };
        let Owner { uid, gid } = wanted;
        let refused = match sabotage::is(Breakage::OwnerNotRestored) {
            true => return owner,
            false => target.chown((uid != owner.uid).then_some(uid), (gid != owner.gid).then_some(gid)),
        };
        match refused {
            Ok(()) => owner = wanted,
            Err(errno) => {
                // One of the groups that one is in can be given without the right to give files away.
                if gid != owner.gid && target.chown(None, Some(gid)).is_ok() {
                    owner.gid = gid;
                }
                told.push(format!(
                    "it belongs to {owner} and belonged to {wanted}: {}",
                    describe_errno(errno)
                ));
            }
        }
        owner
    }

    /// The bits that would mean something else under this owner.
    fn lost_bits(&self, owner: Owner) -> u32 {
        if sabotage::is(Breakage::SetuidKept) {
            return 0;
        }
        let other_user = self.owner.is_none_or(|wanted| wanted.uid != owner.uid);
        let other_group = self.owner.is_none_or(|wanted| wanted.gid != owner.gid);
        let lost = if other_user { SET_UID } else { 0 } | if other_group { SET_GID } else { 0 };
        self.permissions & lost
    }
}

fn give_attributes(
    file: BorrowedFd<'_>,
    wanted: &Attributes,
    present: &Attributes,
    may_have_more: bool,
    told: &mut Vec<String>,
) {
    let wanted = wanted.as_deref().map_or(&[][..], Vec::as_slice);
    let present = present.as_deref().map_or(&[][..], Vec::as_slice);
    let mut failed =
        |name: &[u8], why: &str| told.push(format!("its attribute `{}`: {why}", escape_path(name)));
    for (name, _) in present.iter().filter(|(name, _)| !wanted.iter().any(|(kept, _)| kept == name)) {
        match fremovexattr(file, name.as_slice()) {
            Ok(()) | Err(Errno::NODATA) => {}
            Err(errno) => failed(name, &describe_errno(errno)),
        }
    }
    for attribute in wanted.iter().filter(|attribute| !present.contains(attribute)) {
        let (name, value) = attribute;
        if name == CAPABILITY && !may_have_more {
            failed(name, "it is left off, since the owner is another one");
            continue;
        }
        if let Err(errno) = fsetxattr(file, name.as_slice(), value, XattrFlags::empty()) {
            failed(name, &describe_errno(errno));
        }
    }
}

fn describe_errno(errno: Errno) -> String {
    nix::errno::Errno::from_raw(errno.raw_os_error()).desc().to_owned()
}
