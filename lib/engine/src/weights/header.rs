//! The header of a safetensors file: 8 bytes of length (little endian), then JSON that gives each
//! tensor's dtype, shape and byte range in the rest of the file.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

use serde::Deserialize;

use super::WeightsError;

/// Longest header that is read; the format's own limit.
const MAX_HEADER_BYTES: u64 = 100_000_000;

/// Longest index that is read.
const MAX_INDEX_BYTES: u64 = 100_000_000;

/// A tensor as the header describes it, checked against the file's size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    /// The format's name of what it holds.
    pub(super) dtype: String,
    /// Rows first.
    pub(super) shape: Vec<usize>,
    /// Where in the file, from the file's start.
    pub(super) bytes: Range<usize>,
}

#[derive(Deserialize)]
struct RawEntry {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: [u64; 2],
}

#[derive(Deserialize)]
struct RawIndex {
    weight_map: BTreeMap<String, String>,
}

/// Reads and checks the header of a whole file.
pub(super) fn read(file: &Path, content: &[u8]) -> Result<BTreeMap<String, Entry>, WeightsError> {
    let damaged = |reason: String| WeightsError::DamagedHeader {
        file: file.to_owned(),
        reason,
    };
    let Some((length, rest)) = content.split_first_chunk::<8>() else {
        return Err(damaged(format!(
            "the file has {} bytes, fewer than 8",
            content.len()
        )));
    };
    let length = u64::from_le_bytes(*length);
    if length > MAX_HEADER_BYTES {
        return Err(damaged(format!(
            "it claims {length} bytes, above {MAX_HEADER_BYTES}"
        )));
    }
    let Some(json) = rest.get(..length as usize) else {
        return Err(damaged(format!(
            "it claims {length} bytes, the file has {}",
            rest.len()
        )));
    };
    let mut raw: BTreeMap<String, serde_json::Value> =
        serde_json::from_slice(json).map_err(|e| damaged(e.to_string()))?;
    raw.remove("__metadata__");
    let start = 8 + length;
    let mut entries = BTreeMap::new();
    for (tensor, value) in raw {
        let entry =
            serde_json::from_value(value).map_err(|e| entry_error(file, &tensor, e.to_string()))?;
        let entry = check(file, &tensor, &entry, start, content.len() as u64)?;
        entries.insert(tensor, entry);
    }
    check_layout(file, start as usize..content.len(), &entries)?;
    Ok(entries)
}

/// Tensors lie one after the other from the header to the file's end, as the format demands: where
/// they overlap or leave something out, the header is not that of these bytes.
fn check_layout(
    file: &Path,
    data: Range<usize>,
    entries: &BTreeMap<String, Entry>,
) -> Result<(), WeightsError> {
    let mut placed: Vec<_> = entries.iter().collect();
    placed.sort_unstable_by_key(|(_, entry)| (entry.bytes.start, entry.bytes.end));
    let mut end = data.start;
    for (tensor, Entry { bytes, .. }) in placed {
        if bytes.start != end {
            let (offset, expected) = (bytes.start - data.start, end - data.start);
            let reason = format!("it begins at {offset} where the one before ends at {expected}");
            return Err(entry_error(file, tensor, reason));
        }
        end = bytes.end;
    }
    if end != data.end {
        let reason = format!("{} bytes follow the last tensor", data.end - end);
        return Err(WeightsError::DamagedHeader {
            file: file.to_owned(),
            reason,
        });
    }
    Ok(())
}

fn entry_error(file: &Path, tensor: &str, reason: String) -> WeightsError {
    WeightsError::DamagedEntry {
        file: file.to_owned(),
        tensor: tensor.to_owned(),
        reason,
    }
}

fn check(
    file: &Path,
    tensor: &str,
    raw: &RawEntry,
    start: u64,
    file_bytes: u64,
) -> Result<Entry, WeightsError> {
    let wrong = |reason: String| entry_error(file, tensor, reason);
    let [from, to] = raw.data_offsets;
    let (Some(begin), Some(end)) = (start.checked_add(from), start.checked_add(to)) else {
        return Err(wrong(format!("data_offsets {from}..{to} overflow")));
    };
    let values = raw
        .shape
        .iter()
        .try_fold(1u64, |product, &n| product.checked_mul(n));
    // What cannot be loaded is only reported when the model asks for it: files may hold extras.
    let wanted = value_bytes(&raw.dtype).map(|bytes| values.and_then(|n| n.checked_mul(bytes)));
    if from > to || wanted.is_some_and(|bytes| bytes != Some(to - from)) {
        return Err(wrong(format!(
            "data_offsets {from}..{to} do not hold shape {:?} of {}",
            raw.shape, raw.dtype
        )));
    }
    if end > file_bytes {
        return Err(WeightsError::Truncated {
            file: file.to_owned(),
            tensor: tensor.to_owned(),
            end,
            bytes: file_bytes,
        });
    }
    Ok(Entry {
        dtype: raw.dtype.chars().take(16).collect(),
        shape: raw.shape.iter().map(|&n| n as usize).collect(),
        bytes: begin as usize..end as usize,
    })
}

fn value_bytes(dtype: &str) -> Option<u64> {
    match dtype {
        "BOOL" | "U8" | "I8" | "F8_E4M3" | "F8_E5M2" => Some(1),
        "U16" | "I16" | "F16" | "BF16" => Some(2),
        "U32" | "I32" | "F32" => Some(4),
        "U64" | "I64" | "F64" => Some(8),
        _ => None,
    }
}

/// Reads an index: each tensor's shard, as a file name without folders.
pub(super) fn read_index(file: &Path) -> Result<BTreeMap<String, String>, WeightsError> {
    let unreadable = |source| WeightsError::Unreadable {
        file: file.to_owned(),
        source,
    };
    let damaged = |reason: String| WeightsError::DamagedIndex {
        file: file.to_owned(),
        reason,
    };
    let bytes = std::fs::metadata(file).map_err(unreadable)?.len();
    if bytes > MAX_INDEX_BYTES {
        return Err(damaged(format!(
            "it has {bytes} bytes, above {MAX_INDEX_BYTES}"
        )));
    }
    let content = std::fs::read(file).map_err(unreadable)?;
    let index: RawIndex = serde_json::from_slice(&content).map_err(|e| damaged(e.to_string()))?;
    for (tensor, shard) in &index.weight_map {
        // A name with a folder could lead out of the model's own.
        if Path::new(shard).file_name() != Some(shard.as_ref()) {
            return Err(damaged(format!(
                "tensor {tensor} is in {shard:?}, not a plain file name"
            )));
        }
    }
    Ok(index.weight_map)
}
