//! A short name for a model's exact configuration and weights.

use super::Weights;

/// Tensor bytes up to which all of them are hashed: below, a digest costs well under a second.
const HASHED_IN_FULL: u64 = 1 << 30;

/// Stripes read of each tensor of a larger model.
const STRIPES: usize = 16;

/// Bytes of a stripe.
const STRIPE_BYTES: usize = 1 << 14;

impl Weights {
    /// BLAKE3 of `config` and of every tensor's name, dtype, shape and content, as hex. How the
    /// tensors are spread over shards does not matter.
    ///
    /// Up to 1 GiB of tensors every byte counts. Above, each tensor counts with 16 stripes of
    /// 16 KiB spread evenly from its first to its last byte: two checkpoints of which any tensor
    /// was trained further differ, a single changed value may go unseen. The digest tells models
    /// apart that were mixed up; it is no defence against forgery.
    pub fn digest(&self, config: &[u8]) -> String {
        let sampled = self.bytes() > HASHED_IN_FULL;
        let mut hasher = blake3::Hasher::new();
        let mut field = |bytes: &[u8]| {
            hasher.update(&(bytes.len() as u64).to_le_bytes());
            hasher.update(bytes);
        };
        field(config);
        for name in self.names() {
            let Some((shard, entry)) = self.find(name) else {
                continue;
            };
            let tensor = shard.tensor(entry);
            field(name.as_bytes());
            field(tensor.dtype().as_bytes());
            for &n in tensor.shape() {
                field(&(n as u64).to_le_bytes());
            }
            if sampled {
                stripes(tensor.bytes()).for_each(&mut field);
            } else {
                field(tensor.bytes());
            }
        }
        hasher.finalize().to_hex().to_string()
    }
}

/// Evenly spread parts of `bytes`, the first and the last included; all of it if it is short.
fn stripes(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    let whole = bytes.len() <= STRIPES * STRIPE_BYTES;
    let count = if whole { 1 } else { STRIPES };
    (0..count).map(move |i| {
        if whole {
            return bytes;
        }
        let start = (bytes.len() - STRIPE_BYTES) / (STRIPES - 1) * i;
        let start = if i == STRIPES - 1 {
            bytes.len() - STRIPE_BYTES
        } else {
            start
        };
        &bytes[start..start + STRIPE_BYTES]
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stripes_reach_from_the_first_byte_to_the_last() {
        let bytes: Vec<u8> = (0..1_000_003u32).map(|i| (i % 251) as u8).collect();
        let parts: Vec<&[u8]> = stripes(&bytes).collect();
        assert_eq!(parts.len(), STRIPES);
        assert_eq!(parts[0], &bytes[..STRIPE_BYTES]);
        assert_eq!(parts[STRIPES - 1], &bytes[bytes.len() - STRIPE_BYTES..]);
        assert_eq!(stripes(&bytes[..100]).collect::<Vec<_>>(), [&bytes[..100]]);
    }
}
