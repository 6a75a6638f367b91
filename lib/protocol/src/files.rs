//! Files that are read again when they change.

use std::{fs, os::unix::fs::MetadataExt as _, path::Path, time::SystemTime};

/// What tells one version of a file from another without reading it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version {
    modified: SystemTime,
    /// When it or its rights changed, which nobody can set: seconds and nanoseconds.
    changed: (i64, i64),
    len: u64,
    /// An atomic replacement within the clock's resolution still changes it.
    inode: u64,
}

impl Version {
    /// None while it is away.
    pub fn of(path: &Path) -> Option<Self> {
        let file = fs::metadata(path).ok()?;
        Some(Self {
            modified: file.modified().ok()?,
            changed: (file.ctime(), file.ctime_nsec()),
            len: file.len(),
            inode: file.ino(),
        })
    }
}
