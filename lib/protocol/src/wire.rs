//! The generated protobuf code, and the packed arrays in it.

use std::error::Error;

use bytes::{BufMut, Bytes, BytesMut};
use foretoken_speculation::{
    TokenId,
    sampling::{InvalidSampling, SamplingParams},
    tree::TreeError,
};
use tonic::Status;

#[expect(
    clippy::pedantic,
    unreachable_pub,
    reason = "generated; the domain types are the documented ones"
)]
pub(crate) mod proto {
    pub(crate) mod sampling {
        pub(crate) mod v1 {
            tonic::include_proto!("foretoken.sampling.v1");
        }
    }
    pub(crate) mod speculation {
        pub(crate) mod v1 {
            tonic::include_proto!("foretoken.speculation.v1");
        }
    }
    pub(crate) mod generation {
        pub(crate) mod v1 {
            tonic::include_proto!("foretoken.generation.v1");
        }
    }
}

/// An error and its causes, which tonic and hyper keep to themselves otherwise. Some of them say no
/// more than their own cause does.
pub(crate) fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.ends_with(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    text
}

/// What ended a call: what was wrong with the connection, if that was it, or else what the peer said.
pub(crate) fn end_of_call(status: &Status) -> String {
    match status.source() {
        Some(cause) => chain(cause),
        None if status.message().is_empty() => status.code().description().to_owned(),
        None => status.message().to_owned(),
    }
}

/// A domain type and its form on the wire.
pub(crate) trait Wire: Sized {
    type Proto;

    fn to_proto(&self) -> Self::Proto;

    /// Checks everything that a value of the domain type promises.
    fn from_proto(proto: Self::Proto) -> Result<Self, ValueError>;
}

/// Longest identifying text (instance, digest, path) a peer may send.
const MAX_TEXT: usize = 4096;

/// Why a value from a peer is no value of its type.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ValueError {
    #[error("{0} is missing")]
    Missing(&'static str),
    #[error("{field} has {len} bytes, which is no whole number of words")]
    Torn { field: &'static str, len: usize },
    #[error("{field} has {found} entries, not {expected}")]
    Count {
        field: &'static str,
        found: usize,
        expected: usize,
    },
    #[error("{field} has {found} entries, {limit} are allowed")]
    TooMany {
        field: &'static str,
        found: usize,
        limit: usize,
    },
    #[error(transparent)]
    Sampling(#[from] InvalidSampling),
    #[error("{field} is no chain and no tree: {error}")]
    Tree {
        field: &'static str,
        error: TreeError,
    },
    #[error("{0} is no distribution: weights from 1 to 65535, by ascending token")]
    Distribution(&'static str),
}

pub(crate) fn pack_tokens(tokens: &[TokenId]) -> Bytes {
    let mut bytes = BytesMut::with_capacity(tokens.len() * 4);
    for token in tokens {
        bytes.put_u32_le(token.0);
    }
    bytes.freeze()
}

pub(crate) fn pack_words(words: impl ExactSizeIterator<Item = u32>) -> Bytes {
    let mut bytes = BytesMut::with_capacity(words.len() * 4);
    for word in words {
        bytes.put_u32_le(word);
    }
    bytes.freeze()
}

pub(crate) fn unpack_words<'a>(
    field: &'static str,
    bytes: &'a [u8],
) -> Result<impl ExactSizeIterator<Item = u32> + 'a, ValueError> {
    let (words, rest) = bytes.as_chunks::<4>();
    if !rest.is_empty() {
        return Err(ValueError::Torn {
            field,
            len: bytes.len(),
        });
    }
    Ok(words.iter().map(|word| u32::from_le_bytes(*word)))
}

pub(crate) fn unpack_tokens(field: &'static str, bytes: &[u8]) -> Result<Vec<TokenId>, ValueError> {
    Ok(unpack_words(field, bytes)?.map(TokenId).collect())
}

/// Tokens with a number each: two arrays of equal length.
pub(crate) fn unpack_pairs(
    field: &'static str,
    tokens: &[u8],
    values: &[u8],
) -> Result<Vec<(TokenId, f32)>, ValueError> {
    let tokens = unpack_words(field, tokens)?;
    let values = unpack_words(field, values)?;
    check_count(field, values.len(), tokens.len())?;
    Ok(tokens
        .map(TokenId)
        .zip(values.map(f32::from_bits))
        .collect())
}

pub(crate) fn check_count(
    field: &'static str,
    found: usize,
    expected: usize,
) -> Result<(), ValueError> {
    if found == expected {
        return Ok(());
    }
    Err(ValueError::Count {
        field,
        found,
        expected,
    })
}

pub(crate) fn check_at_most(
    field: &'static str,
    found: usize,
    limit: usize,
) -> Result<(), ValueError> {
    if found <= limit {
        return Ok(());
    }
    Err(ValueError::TooMany {
        field,
        found,
        limit,
    })
}

pub(crate) fn check_text(field: &'static str, text: String) -> Result<String, ValueError> {
    if text.len() > MAX_TEXT {
        return Err(ValueError::TooMany {
            field,
            found: text.len(),
            limit: MAX_TEXT,
        });
    }
    Ok(text)
}

impl Wire for SamplingParams {
    type Proto = proto::sampling::v1::SamplingParams;

    fn to_proto(&self) -> Self::Proto {
        Self::Proto {
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            repetition_penalty: self.repetition_penalty,
            presence_penalty: self.presence_penalty,
            frequency_penalty: self.frequency_penalty,
            bias_tokens: pack_words(self.logit_bias.iter().map(|(token, _)| token.0)),
            bias_values: pack_words(self.logit_bias.iter().map(|(_, bias)| bias.to_bits())),
            banned_until_min: pack_tokens(&self.banned_until_min),
            min_tokens: self.min_tokens,
        }
    }

    fn from_proto(proto: Self::Proto) -> Result<Self, ValueError> {
        let params = Self {
            temperature: proto.temperature,
            top_k: proto.top_k,
            top_p: proto.top_p,
            min_p: proto.min_p,
            repetition_penalty: proto.repetition_penalty,
            presence_penalty: proto.presence_penalty,
            frequency_penalty: proto.frequency_penalty,
            logit_bias: unpack_pairs("logit_bias", &proto.bias_tokens, &proto.bias_values)?,
            banned_until_min: unpack_tokens("banned_until_min", &proto.banned_until_min)?,
            min_tokens: proto.min_tokens,
        };
        params.validate()?;
        Ok(params)
    }
}
