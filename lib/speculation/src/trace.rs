//! Which trace something belongs to: W3C Trace Context, <https://www.w3.org/TR/trace-context/>.
//!
//! A name of names, passed on: nothing that is decided here depends on it. What cannot be read is
//! no context, never an error.

use core::{
    fmt,
    num::{NonZeroU64, NonZeroU128},
};

/// The trace of a request, and the span in it that caused what it is told to.
///
/// Written and read as a `traceparent`: `00-<trace: 32 digits>-<span: 16 digits>-<flags: 2 digits>`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TraceContext {
    /// Name of the trace.
    pub trace: NonZeroU128,
    /// Name of the span.
    pub span: NonZeroU64,
    /// What is asked of whoever continues it.
    pub flags: TraceFlags,
}

/// The flags of a trace that have a meaning; all others are dropped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct TraceFlags(u8);

impl TraceFlags {
    /// Whoever asks records it.
    pub const SAMPLED: Self = Self(1);
    /// All digits of the trace's name are random (level 2).
    pub const RANDOM: Self = Self(2);

    /// These bits, as far as they mean anything.
    pub const fn new(bits: u8) -> Self {
        Self(bits & (Self::SAMPLED.0 | Self::RANDOM.0))
    }

    /// As bits.
    pub const fn bits(self) -> u8 {
        self.0
    }
}

impl TraceContext {
    /// Bytes of a `traceparent` of the version that is written.
    pub const LEN: usize = 55;

    /// Reads a `traceparent`. Later versions are read as far as they are like this one, as the
    /// standard asks; none if it is malformed or names nothing.
    pub fn parse(text: &str) -> Option<Self> {
        let bytes = text.as_bytes();
        let fields = text.is_ascii() && bytes.len() >= Self::LEN;
        if !fields || [2, 35, 52].iter().any(|&at| bytes[at] != b'-') {
            return None;
        }
        let version = hex(&text[..2])?;
        let whole = match version {
            0 => bytes.len() == Self::LEN,
            0xff => false,
            _ => bytes.len() == Self::LEN || bytes[Self::LEN] == b'-',
        };
        if !whole {
            return None;
        }
        Some(Self {
            trace: NonZeroU128::new(hex(&text[3..35])?)?,
            span: NonZeroU64::new(hex(&text[36..52])? as u64)?,
            flags: TraceFlags::new(hex(&text[53..55])? as u8),
        })
    }

    /// Whether whoever asks records it.
    pub const fn is_sampled(self) -> bool {
        self.flags.0 & TraceFlags::SAMPLED.0 != 0
    }
}

impl fmt::Display for TraceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { trace, span, flags } = self;
        write!(f, "00-{trace:032x}-{span:016x}-{:02x}", flags.0)
    }
}

/// A number in lower case digits, and nothing else.
fn hex(digits: &str) -> Option<u128> {
    let lower = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    let all = digits.bytes().all(lower);
    all.then(|| u128::from_str_radix(digits, 16).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use std::{
        borrow::ToOwned,
        format,
        string::{String, ToString},
    };

    use super::*;

    const GOOD: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn what_is_written_reads_back() {
        let context = TraceContext::parse(GOOD).expect("the standard's own example");
        assert!(context.is_sampled());
        assert_eq!(context.span.get(), 0x00f0_67aa_0ba9_02b7);
        assert_eq!(context.to_string(), GOOD);
        let unsampled = TraceContext::parse(&GOOD.replace("-01", "-02")).expect("level 2");
        assert!(!unsampled.is_sampled());
        assert_eq!(unsampled.flags, TraceFlags::RANDOM);
    }

    #[test]
    fn a_later_version_is_read_as_far_as_it_is_known() {
        let later = format!("cc{}-what-the-future-says", &GOOD[2..]);
        assert_eq!(TraceContext::parse(&later), TraceContext::parse(GOOD));
        let flags = GOOD.replace("-01", "-ff");
        let known = TraceContext::parse(&flags).expect("unknown flags").flags;
        assert_eq!(known.bits(), 3);
    }

    #[test]
    fn what_is_malformed_or_names_nothing_is_no_context() {
        for bad in [
            String::new(),
            GOOD[..54].to_owned(),
            format!("{GOOD}-x"),
            format!("cc{}x", &GOOD[2..]),
            GOOD.replace("00-4b", "ff-4b"),
            GOOD.replace("4bf9", "4BF9"),
            GOOD.replace("4bf9", "+bf9"),
            GOOD.replace("-00f0", "_00f0"),
            GOOD.replace("4bf92f3577b34da6a3ce929d0e0e4736", &"0".repeat(32)),
            GOOD.replace("00f067aa0ba902b7", &"0".repeat(16)),
            GOOD.replace("4bf9", "4b\u{e9}"),
        ] {
            assert_eq!(TraceContext::parse(&bad), None, "{bad}");
        }
    }
}
