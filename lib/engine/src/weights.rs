//! Weights of a model folder: safetensors files, mapped, whole or in shards.
//!
//! ```text
//! model.safetensors ------------------------------+
//! model.safetensors.index.json --> shard files ---+--> header (checked) --> Tensor views
//! ```
//!
//! Every header is checked in full when it is opened, so that later look-ups can only fail for
//! what the model wants and the file has not.
//!
//! Invariant: no content of a file makes this module panic, read outside the file or allocate
//! more than a header's size.
//!
//! Not here: what the tensors mean (`spec::names`) and how they are packed (`model`).

mod digest;
mod header;
mod shard;
mod tensor;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use shard::Shard;
pub use tensor::Tensor;

/// The tensors of a model folder.
#[derive(Debug)]
pub struct Weights {
    folder: PathBuf,
    shards: Vec<Shard>,
    /// Shard of each tensor.
    places: BTreeMap<String, usize>,
}

impl Weights {
    /// Opens `model.safetensors`, or the shards that `model.safetensors.index.json` lists.
    ///
    /// # Errors
    /// If a file is missing or damaged.
    pub fn open(folder: &Path) -> Result<Self, WeightsError> {
        let whole = folder.join("model.safetensors");
        let index = folder.join("model.safetensors.index.json");
        if whole.exists() {
            return Self::from_shards(folder, vec![Shard::open(&whole)?]);
        }
        if !index.exists() {
            return Err(WeightsError::NoWeights {
                folder: folder.to_owned(),
            });
        }
        Self::from_index(folder, &index)
    }

    /// A tensor of the given shape.
    ///
    /// # Errors
    /// If no file has it, or in another shape.
    pub fn tensor(&self, name: &str, shape: &[usize]) -> Result<Tensor<'_>, WeightsError> {
        let Some((shard, entry)) = self.find(name) else {
            return Err(WeightsError::MissingTensor {
                files: self.files(),
                tensor: name.to_owned(),
                shape: shape.to_vec(),
            });
        };
        if entry.shape != shape {
            return Err(WeightsError::WrongShape {
                file: shard.file().to_owned(),
                tensor: name.to_owned(),
                found: entry.shape.clone(),
                wanted: shape.to_vec(),
            });
        }
        Ok(shard.tensor(entry))
    }

    /// Whether a tensor of that name exists.
    pub fn contains(&self, name: &str) -> bool {
        self.places.contains_key(name)
    }

    /// Names of all tensors, in order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.places.keys().map(String::as_str)
    }

    /// Bytes of all tensors.
    pub fn bytes(&self) -> u64 {
        self.names()
            .filter_map(|name| self.find(name))
            .map(|(_, e)| e.bytes.len() as u64)
            .sum()
    }

    fn from_index(folder: &Path, index: &Path) -> Result<Self, WeightsError> {
        let listed = header::read_index(index)?;
        let mut shards: Vec<Shard> = Vec::new();
        let mut places: BTreeMap<PathBuf, usize> = BTreeMap::new();
        for (tensor, file) in &listed {
            let path = folder.join(file);
            if places.contains_key(&path) {
                continue;
            }
            if !path.exists() {
                return Err(WeightsError::MissingShard {
                    index: index.to_owned(),
                    tensor: tensor.clone(),
                    shard: path,
                });
            }
            places.insert(path.clone(), shards.len());
            shards.push(Shard::open(&path)?);
        }
        for (tensor, file) in &listed {
            let shard = &shards[places[&folder.join(file)]];
            if shard.entry(tensor).is_none() {
                return Err(WeightsError::NotInShard {
                    index: index.to_owned(),
                    tensor: tensor.clone(),
                    shard: shard.file().to_owned(),
                });
            }
        }
        Self::from_shards(folder, shards)
    }

    fn from_shards(folder: &Path, shards: Vec<Shard>) -> Result<Self, WeightsError> {
        let mut places = BTreeMap::new();
        for (i, shard) in shards.iter().enumerate() {
            for name in shard.names() {
                if places.insert(name.to_owned(), i).is_some() {
                    return Err(WeightsError::Twice {
                        file: shard.file().to_owned(),
                        tensor: name.to_owned(),
                    });
                }
            }
        }
        Ok(Self {
            folder: folder.to_owned(),
            shards,
            places,
        })
    }

    fn find(&self, name: &str) -> Option<(&Shard, &header::Entry)> {
        let shard = &self.shards[*self.places.get(name)?];
        Some((shard, shard.entry(name)?))
    }

    /// The files, for a message about something that none of them has.
    pub(crate) fn files(&self) -> String {
        match self.shards.as_slice() {
            [one] => one.file().display().to_string(),
            many => format!("{} ({} shards)", self.folder.display(), many.len()),
        }
    }
}

/// Why weights cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum WeightsError {
    /// Neither a whole file nor an index.
    #[error(
        "{folder} has neither model.safetensors nor model.safetensors.index.json: \
         give a folder with safetensors weights"
    )]
    NoWeights {
        /// The model folder.
        folder: PathBuf,
    },
    /// A file cannot be opened or mapped.
    #[error("cannot read {file}")]
    Unreadable {
        /// The file.
        file: PathBuf,
        /// The system's reason.
        source: std::io::Error,
    },
    /// The index is no index.
    #[error("{file} is damaged, download it again: {reason}")]
    DamagedIndex {
        /// The index.
        file: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// The index names a shard that is not there.
    #[error("{index} places tensor {tensor} in {shard}, which does not exist: download it")]
    MissingShard {
        /// The index.
        index: PathBuf,
        /// The tensor.
        tensor: String,
        /// The file that is not there.
        shard: PathBuf,
    },
    /// The index places a tensor in a shard that lacks it.
    #[error("{index} places tensor {tensor} in {shard}, which does not have it")]
    NotInShard {
        /// The index.
        index: PathBuf,
        /// The tensor.
        tensor: String,
        /// The file that lacks it.
        shard: PathBuf,
    },
    /// Two shards hold the same tensor.
    #[error("{file}: tensor {tensor} is also in an earlier shard")]
    Twice {
        /// The later file.
        file: PathBuf,
        /// The tensor.
        tensor: String,
    },
    /// The header of a file cannot be read.
    #[error("{file} has a damaged header, download it again: {reason}")]
    DamagedHeader {
        /// The file.
        file: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// The header says what cannot be about a tensor.
    #[error("{file}: the header's entry of tensor {tensor} is damaged: {reason}")]
    DamagedEntry {
        /// The file.
        file: PathBuf,
        /// The tensor.
        tensor: String,
        /// What is wrong.
        reason: String,
    },
    /// The file ends before a tensor does.
    #[error(
        "{file} is truncated: tensor {tensor} ends at byte {end}, the file has {bytes}; \
         download it again"
    )]
    Truncated {
        /// The file.
        file: PathBuf,
        /// The first tensor that does not fit.
        tensor: String,
        /// Where it should end.
        end: u64,
        /// Size of the file.
        bytes: u64,
    },
    /// A tensor the model needs is in no file.
    #[error("{files}: tensor {tensor} of shape {shape:?} is missing")]
    MissingTensor {
        /// The file or files.
        files: String,
        /// The tensor.
        tensor: String,
        /// The shape that config.json asks for.
        shape: Vec<usize>,
    },
    /// A tensor does not have the shape that `config.json` asks for.
    #[error("{file}: tensor {tensor} has shape {found:?}, config.json asks for {wanted:?}")]
    WrongShape {
        /// The file.
        file: PathBuf,
        /// The tensor.
        tensor: String,
        /// Its shape.
        found: Vec<usize>,
        /// The shape that config.json asks for.
        wanted: Vec<usize>,
    },
    /// A tensor holds numbers of a kind that weights do not come in.
    #[error("{file}: tensor {tensor} holds {found}, weights must be F32, F16 or BF16")]
    WrongDtype {
        /// The file.
        file: PathBuf,
        /// The tensor.
        tensor: String,
        /// What it holds.
        found: String,
    },
    /// A tensor holds an infinity or something that is no number.
    #[error(
        "{file}: value {place} of tensor {tensor} is not a finite number: download the file again"
    )]
    NotFinite {
        /// The file.
        file: PathBuf,
        /// The tensor.
        tensor: String,
        /// Index of the first one.
        place: usize,
    },
}
