//! A view of a tensor's values in a mapped file.

use std::path::Path;

use half::{bf16, f16};

use super::WeightsError;

/// What a tensor's values are stored as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stored {
    /// 32 bit.
    F32,
    /// 16 bit, IEEE.
    F16,
    /// The upper half of 32 bit.
    Bf16,
}

/// A tensor in a mapped file.
#[derive(Clone, Copy, Debug)]
pub struct Tensor<'a> {
    file: &'a Path,
    dtype: &'a str,
    shape: &'a [usize],
    bytes: &'a [u8],
}

impl<'a> Tensor<'a> {
    pub(super) fn new(
        file: &'a Path,
        dtype: &'a str,
        shape: &'a [usize],
        bytes: &'a [u8],
    ) -> Self {
        Self { file, dtype, shape, bytes }
    }

    /// Rows first.
    pub fn shape(&self) -> &'a [usize] {
        self.shape
    }

    /// The stored bytes, values little endian, last index fastest.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// The format's name of what it holds.
    pub fn dtype(&self) -> &'a str {
        self.dtype
    }

    /// What it holds.
    ///
    /// # Errors
    /// If that is nothing weights come in; `name` is for the message.
    pub fn stored(&self, name: &str) -> Result<Stored, WeightsError> {
        match self.dtype {
            "F32" => Ok(Stored::F32),
            "F16" => Ok(Stored::F16),
            "BF16" => Ok(Stored::Bf16),
            other => Err(WeightsError::WrongDtype {
                file: self.file.to_owned(),
                tensor: name.to_owned(),
                found: other.to_owned(),
            }),
        }
    }

    /// All values, widened to f32 (exact for every stored form).
    ///
    /// # Errors
    /// As [`Tensor::stored`].
    pub fn to_f32(&self, name: &str) -> Result<Vec<f32>, WeightsError> {
        let stored = self.stored(name)?;
        Ok(match stored {
            Stored::F32 => {
                let (values, _) = self.bytes.as_chunks::<4>();
                values.iter().map(|b| f32::from_le_bytes(*b)).collect()
            }
            Stored::F16 => {
                let (values, _) = self.bytes.as_chunks::<2>();
                values.iter().map(|b| f16::from_le_bytes(*b).to_f32()).collect()
            }
            Stored::Bf16 => {
                let (values, _) = self.bytes.as_chunks::<2>();
                values.iter().map(|b| bf16::from_le_bytes(*b).to_f32()).collect()
            }
        })
    }
}
