//! A view of a tensor's values in a mapped file.

use std::path::Path;

use super::WeightsError;
use crate::cpu::linear::SourceType;

/// A tensor in a mapped file.
#[derive(Clone, Copy, Debug)]
pub struct Tensor<'a> {
    file: &'a Path,
    dtype: &'a str,
    shape: &'a [usize],
    bytes: &'a [u8],
}

impl<'a> Tensor<'a> {
    pub(super) fn new(file: &'a Path, dtype: &'a str, shape: &'a [usize], bytes: &'a [u8]) -> Self {
        Self {
            file,
            dtype,
            shape,
            bytes,
        }
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
    pub fn source(&self, name: &str) -> Result<SourceType, WeightsError> {
        match self.dtype {
            "F32" => Ok(SourceType::F32),
            "F16" => Ok(SourceType::F16),
            "BF16" => Ok(SourceType::Bf16),
            other => Err(WeightsError::WrongDtype {
                file: self.file.to_owned(),
                tensor: name.to_owned(),
                found: other.to_owned(),
            }),
        }
    }

    /// What it holds, all of which are finite numbers. A model with others decodes, but to nothing.
    ///
    /// # Errors
    /// If that is nothing weights come in; `name` is for the message.
    pub fn numbers(&self, name: &str) -> Result<SourceType, WeightsError> {
        let source = self.source(name)?;
        match source.first_not_finite(self.bytes) {
            None => Ok(source),
            Some(place) => Err(WeightsError::NotFinite {
                file: self.file.to_owned(),
                tensor: name.to_owned(),
                place,
            }),
        }
    }

    /// All values, widened to f32 (exact for every source).
    ///
    /// # Errors
    /// As [`Tensor::numbers`].
    pub fn to_f32(&self, name: &str) -> Result<Vec<f32>, WeightsError> {
        let source = self.numbers(name)?;
        let mut values = vec![0.0; self.bytes.len() / source.bytes()];
        source.widen(self.bytes, &mut values);
        Ok(values)
    }
}
