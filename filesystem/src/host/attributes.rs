//! The attributes of a file in addition to its content: owner, permissions, extended attributes and
//! the time of its last change.
//!
//! They are restored in this order, since each may undo those that follow: owner, permissions,
//! attributes, time. Attributes that this process may not set are reported. No attribute is set
//! that grants more under a different owner: a file that cannot be given back to its owner loses
//! its set-user-ID and set-group-ID bits and its capabilities.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use nix::errno::Errno as NixErrno;
use rustix::fs::{
    AtFlags, Gid, Mode, Timespec, Timestamps, UTIME_OMIT, Uid, XattrFlags, chownat, fchmod, fchown,
    fgetxattr, flistxattr, fremovexattr, fsetxattr, futimens, utimensat,
};
use rustix::io::Errno;

use super::manifest::{Attributes, Owner, Stat, escape_path};
use super::step::nix_errno;

/// Linux's limit for the length of a file's list of attributes, and of a value.
const LIST_BYTES_MAX: usize = 64 << 10;

const SET_UID: u32 = 0o4000;
const SET_GID: u32 = 0o2000;
const CAPABILITY: &[u8] = b"security.capability";

/// Returns whether an attribute is the file's own: neither foldlog's mark nor the label of a
/// security module.
fn is_kept(name: &[u8]) -> bool {
    if name.starts_with(b"user.foldlog.") {
        return false;
    }
    let system = name.starts_with(b"security.") || name.starts_with(b"system.");
    !system || [CAPABILITY, b"system.posix_acl_access", b"system.posix_acl_default"].contains(&name)
}

/// Reads the extended attributes of an open file. A file system without them is not an error.
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
            // It was removed in the meantime, or this process may not read it.
            Err(Errno::NODATA | Errno::ACCESS | Errno::PERM | Errno::OPNOTSUPP) => {}
            Err(errno) => return Err(errno),
        }
    }
    found.sort();
    Ok((!found.is_empty()).then(|| Arc::new(found)))
}

#[derive(Clone, Debug)]
pub(super) struct WantedAttributes {
    pub(super) permissions: u32,
    /// `None`, like the next two, if the snapshot does not record it.
    pub(super) owner: Option<Owner>,
    pub(super) attributes: Option<Attributes>,
    pub(super) modified_ns: Option<i64>,
}

pub(super) enum Target<'a> {
    /// A file or a directory.
    Opened(BorrowedFd<'a>),
    /// A link, by its directory and its name.
    Link(BorrowedFd<'a>, &'a [u8]),
}

impl Target<'_> {
    fn chown(&self, uid: Option<u32>, gid: Option<u32>) -> Result<(), NixErrno> {
        let (uid, gid) = (uid.map(Uid::from_raw), gid.map(Gid::from_raw));
        let done = match self {
            Target::Opened(file) => fchown(file, uid, gid),
            Target::Link(directory, name) => chownat(directory, *name, uid, gid, AtFlags::SYMLINK_NOFOLLOW),
        };
        done.map_err(nix_errno)
    }

    pub(super) fn set_time(&self, modified_ns: i64) -> Result<(), NixErrno> {
        let times = Timestamps {
            last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
            last_modification: Timespec {
                tv_sec: modified_ns.div_euclid(1_000_000_000),
                tv_nsec: modified_ns.rem_euclid(1_000_000_000),
            },
        };
        let done = match self {
            Target::Opened(file) => futimens(file, &times),
            Target::Link(directory, name) => utimensat(directory, *name, &times, AtFlags::SYMLINK_NOFOLLOW),
        };
        done.map_err(nix_errno)
    }
}

impl WantedAttributes {
    pub(super) fn is_borne_by(&self, stat: &Stat, attributes: &Attributes, is_link: bool) -> bool {
        let WantedAttributes { permissions, owner, attributes: wanted, modified_ns } = self;
        (is_link || stat.permissions() == *permissions)
            && owner.is_none_or(|owner| owner == stat.owner)
            && (is_link || wanted.as_ref().is_none_or(|wanted| wanted == attributes))
            && modified_ns.is_none_or(|ns| ns == stat.modified_ns)
    }

    /// Sets the attributes on an entry that has `stat` and `attributes`, and returns descriptions
    /// of those that could not be set.
    ///
    /// # Errors
    ///
    /// Returns an error if the permissions cannot be changed.
    pub(super) fn give(
        &self,
        target: &Target<'_>,
        stat: &Stat,
        attributes: &Attributes,
    ) -> Result<Vec<String>, NixErrno> {
        let mut told = Vec::new();
        let owner = self.give_owner(target, stat.owner, &mut told);
        if let Target::Opened(file) = target {
            let lost = self.lost_bits(owner);
            let permissions = self.permissions & !lost;
            if lost != 0 {
                told.push("its set-user-ID and set-group-ID bits are left off".to_owned());
            }
            // A new owner clears these bits.
            if stat.permissions() != permissions || owner != stat.owner {
                fchmod(file, Mode::from_raw_mode(permissions)).map_err(nix_errno)?;
            }
            told.extend(self.give_attributes(*file, owner, attributes));
        }
        match self.modified_ns {
            // A capture stores 64 bits of nanoseconds.
            Some(i64::MIN | i64::MAX) => {
                told.push(
                    "its time of change was before 1677 or after 2262, which no capture keeps".to_owned(),
                );
            }
            Some(ns) => {
                let failed = target.set_time(ns).err();
                told.extend(failed.map(|errno| format!("its time of change: {}", errno.desc())));
            }
            None => {}
        }
        Ok(told)
    }

    /// Sets a file's owner, adds a failure to `told`, and returns the resulting owner.
    fn give_owner(&self, target: &Target<'_>, present: Owner, told: &mut Vec<String>) -> Owner {
        let mut owner = present;
        let Some(wanted) = self.owner.filter(|owner| *owner != present) else { return owner };
        let Owner { uid, gid } = wanted;
        let given = target.chown((uid != owner.uid).then_some(uid), (gid != owner.gid).then_some(gid));
        let Err(errno) = given else { return wanted };
        // A process can set one of its own groups without the right to give files away.
        if gid != owner.gid && target.chown(None, Some(gid)).is_ok() {
            owner.gid = gid;
        }
        told.push(format!("it belongs to {owner} and belonged to {wanted}: {}", errno.desc()));
        owner
    }

    /// Returns the bits that would have a different meaning under this owner.
    fn lost_bits(&self, owner: Owner) -> u32 {
        let other_user = self.owner.is_none_or(|wanted| wanted.uid != owner.uid);
        let other_group = self.owner.is_none_or(|wanted| wanted.gid != owner.gid);
        let lost = if other_user { SET_UID } else { 0 } | if other_group { SET_GID } else { 0 };
        self.permissions & lost
    }

    /// Sets a file's extended attributes under this owner, and returns descriptions of those that
    /// could not be set.
    fn give_attributes(&self, file: BorrowedFd<'_>, owner: Owner, present: &Attributes) -> Vec<String> {
        let Some(wanted) = &self.attributes else { return Vec::new() };
        let (wanted, present) = (listed(wanted), listed(present));
        let mut told = Vec::new();
        let mut failed =
            |name: &[u8], why: &str| told.push(format!("its attribute `{}`: {why}", escape_path(name)));
        for (name, _) in present.iter().filter(|(name, _)| !wanted.iter().any(|(kept, _)| kept == name)) {
            match fremovexattr(file, name.as_slice()) {
                Ok(()) | Err(Errno::NODATA) => {}
                Err(errno) => failed(name, nix_errno(errno).desc()),
            }
        }
        for attribute in wanted.iter().filter(|attribute| !present.contains(attribute)) {
            let (name, value) = attribute;
            if name == CAPABILITY && self.owner != Some(owner) {
                failed(name, "it is left off, since the owner is another one");
            } else if let Err(errno) = fsetxattr(file, name.as_slice(), value, XattrFlags::empty()) {
                failed(name, nix_errno(errno).desc());
            }
        }
        told
    }
}

/// Returns the extended attributes of a file, sorted by their names.
pub(super) fn listed(attributes: &Attributes) -> &[(Vec<u8>, Vec<u8>)] {
    attributes.as_deref().map_or(&[], Vec::as_slice)
}
