//! One mapped safetensors file.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};

use memmap2::Mmap;

use super::header::{self, Entry};
use super::{Tensor, WeightsError};

/// A file, mapped for as long as it is loaded from.
#[derive(Debug)]
pub(super) struct Shard {
    file: PathBuf,
    map: Mmap,
    entries: BTreeMap<String, Entry>,
}

impl Shard {
    pub(super) fn open(file: &Path) -> Result<Self, WeightsError> {
        let unreadable = |source| WeightsError::Unreadable {
            file: file.to_owned(),
            source,
        };
        let handle = File::open(file).map_err(unreadable)?;
        let map = map(&handle).map_err(unreadable)?;
        let entries = header::read(file, &map)?;
        Ok(Self {
            file: file.to_owned(),
            map,
            entries,
        })
    }

    pub(super) fn file(&self) -> &Path {
        &self.file
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.entries.keys().map(String::as_str)
    }

    pub(super) fn entry(&self, name: &str) -> Option<&Entry> {
        self.entries.get(name)
    }

    /// A view of a tensor of this file.
    pub(super) fn tensor<'a>(&'a self, entry: &'a Entry) -> Tensor<'a> {
        // Ranges were checked against the mapped length when the header was read.
        Tensor::new(
            &self.file,
            &entry.dtype,
            &entry.shape,
            &self.map[entry.bytes.clone()],
        )
    }
}

#[expect(
    unsafe_code,
    reason = "mapping a file is the only way to read 100 GB without copying"
)]
fn map(handle: &File) -> std::io::Result<Mmap> {
    // SAFETY: the map is read only and private to this process's load. Changing a model's file
    // while it is loaded is outside what any reader of mapped files can defend against; the map
    // lives only until the weights are packed.
    unsafe { Mmap::map(handle) }
}
