//! Checkpoints made from a fixture's, changed in one way.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::Path;

use half::{bf16, f16};
use safetensors::{Dtype, SafeTensors, View};
use serde_json::Value;
use tempfile::TempDir;

use crate::fixture;

/// A tensor in memory.
#[derive(Clone)]
pub(crate) struct Tensor {
    pub(crate) dtype: Dtype,
    pub(crate) shape: Vec<usize>,
    pub(crate) bytes: Vec<u8>,
}

impl Tensor {
    pub(crate) fn of(shape: &[usize], values: &[f32]) -> Self {
        let bytes = values.iter().flat_map(|x| x.to_le_bytes()).collect();
        Self {
            dtype: Dtype::F32,
            shape: shape.to_vec(),
            bytes,
        }
    }

    pub(crate) fn values(&self) -> Vec<f32> {
        assert_eq!(self.dtype, Dtype::F32);
        self.bytes
            .as_chunks::<4>()
            .0
            .iter()
            .map(|b| f32::from_le_bytes(*b))
            .collect()
    }

    /// The same values rounded to 16 bits.
    pub(crate) fn narrowed(&self, dtype: Dtype) -> Self {
        let narrow = |x: f32| match dtype {
            Dtype::BF16 => bf16::from_f32(x).to_le_bytes(),
            _ => f16::from_f32(x).to_le_bytes(),
        };
        let bytes = self.values().into_iter().flat_map(narrow).collect();
        Self {
            dtype,
            shape: self.shape.clone(),
            bytes,
        }
    }

    /// 16 bit values widened again.
    pub(crate) fn widened(&self) -> Self {
        let pairs = self.bytes.as_chunks::<2>().0.iter();
        let values: Vec<f32> = match self.dtype {
            Dtype::BF16 => pairs.map(|b| bf16::from_le_bytes(*b).to_f32()).collect(),
            _ => pairs.map(|b| f16::from_le_bytes(*b).to_f32()).collect(),
        };
        Self::of(&self.shape, &values)
    }
}

impl View for &Tensor {
    fn dtype(&self) -> Dtype {
        self.dtype
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        Cow::Borrowed(&self.bytes)
    }

    fn data_len(&self) -> usize {
        self.bytes.len()
    }
}

/// A model folder in memory.
#[derive(Clone)]
pub(crate) struct Checkpoint {
    pub(crate) config: Value,
    pub(crate) tensors: BTreeMap<String, Tensor>,
}

impl Checkpoint {
    /// A fixture's.
    pub(crate) fn of(name: &str) -> Self {
        let folder = fixture::folder(name);
        let config = std::fs::read_to_string(folder.join("config.json")).unwrap();
        let bytes = std::fs::read(folder.join("model.safetensors")).unwrap();
        let file = SafeTensors::deserialize(&bytes).unwrap();
        let tensors = file.iter().map(|(name, view)| {
            let (shape, bytes) = (view.shape().to_vec(), view.data().to_vec());
            (
                name.to_owned(),
                Tensor {
                    dtype: view.dtype(),
                    shape,
                    bytes,
                },
            )
        });
        Self {
            config: serde_json::from_str(&config).unwrap(),
            tensors: tensors.collect(),
        }
    }

    /// Sets fields of the configuration; `null` takes one away.
    pub(crate) fn set(&mut self, fields: &Value) {
        let config = self.config.as_object_mut().unwrap();
        for (field, value) in fields.as_object().unwrap() {
            if value.is_null() {
                config.remove(field);
            } else {
                config.insert(field.clone(), value.clone());
            }
        }
    }

    /// Renames every tensor.
    pub(crate) fn rename(&mut self, name: impl Fn(&str) -> String) {
        let tensors = std::mem::take(&mut self.tensors);
        self.tensors = tensors
            .into_iter()
            .map(|(old, tensor)| (name(&old), tensor))
            .collect();
    }

    /// Changes every tensor.
    pub(crate) fn map(&mut self, change: impl Fn(&Tensor) -> Tensor) {
        for tensor in self.tensors.values_mut() {
            *tensor = change(tensor);
        }
    }

    /// Writes a folder with one weights file.
    pub(crate) fn write(&self) -> TempDir {
        let folder = self.write_config();
        write_tensors(&self.tensors, &folder.path().join("model.safetensors"));
        folder
    }

    /// Writes a folder with an index and `count` shards.
    pub(crate) fn write_shards(&self, count: usize) -> TempDir {
        let folder = self.write_config();
        let mut shards = vec![BTreeMap::new(); count];
        let mut map = serde_json::Map::new();
        for (i, (name, tensor)) in self.tensors.iter().enumerate() {
            shards[i % count].insert(name.clone(), tensor.clone());
            map.insert(name.clone(), shard_name(i % count, count).into());
        }
        for (i, shard) in shards.iter().enumerate() {
            write_tensors(shard, &folder.path().join(shard_name(i, count)));
        }
        let index = serde_json::json!({ "metadata": {"total_size": 0}, "weight_map": map });
        let file = folder.path().join("model.safetensors.index.json");
        std::fs::write(file, index.to_string()).unwrap();
        folder
    }

    fn write_config(&self) -> TempDir {
        let folder = TempDir::new().unwrap();
        std::fs::write(folder.path().join("config.json"), self.config.to_string()).unwrap();
        folder
    }
}

/// Name of a shard's file.
pub(crate) fn shard_name(i: usize, count: usize) -> String {
    format!("model-{:05}-of-{count:05}.safetensors", i + 1)
}

fn write_tensors(tensors: &BTreeMap<String, Tensor>, file: &Path) {
    safetensors::serialize_to_file(tensors, None, file).unwrap();
}
