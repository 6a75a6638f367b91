//! Frames: everything one step has to say.
//!
//! A frame is a sequence of length-delimited protobuf fields, read one by one. A field of the
//! frame itself that cannot be read ends the link, since nothing after it can be trusted; a
//! session's message that cannot be read is reported and the next one is read. Memory used is
//! bounded by the frame's size and by [`MAX_MESSAGES`].

use bytes::{Buf, BufMut, Bytes, BytesMut};
use foretoken_speculation::{
    Proposals, SessionId, TraceContext, bounds,
    message::{SparseDistribution, ToDraft, ToTarget},
};
use prost::Message;

use super::{Consumer, Hello, Limits, LoadReport, Malformed, Welcome};
use crate::wire::{
    ValueError, Wire, check_text,
    proto::speculation::v1::{self as proto},
};

/// Version of the protocol on links. Both ends must have the same.
pub const VERSION: u32 = 1;

/// Most messages in a frame.
pub const MAX_MESSAGES: usize = 1 << 16;

/// Most fields of a frame: its messages, and what else it says.
const MAX_FIELDS: usize = MAX_MESSAGES + 64;

/// Why a frame cannot be read. The link ends.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The bytes are no protobuf message.
    #[error("a frame is malformed at byte {at}: {problem}")]
    Bytes {
        /// Offset from the frame's start.
        at: usize,
        /// What is wrong there.
        problem: String,
    },
    /// A field of the frame has no valid value.
    #[error("a frame is malformed: {0}")]
    Value(String),
    /// More messages than a frame may have, or more other fields.
    #[error("a frame has more than {MAX_MESSAGES} messages or other fields")]
    TooManyMessages,
}

impl From<ValueError> for FrameError {
    fn from(error: ValueError) -> Self {
        Self::Value(error.to_string())
    }
}

/// What one step of a target says.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TargetFrame {
    /// Messages, in order.
    pub messages: Vec<ToDraft>,
    /// Messages that made no sense. Filled when read, ignored when written.
    pub malformed: Vec<Malformed>,
    /// In the first frame: who the target is, and its protocol's version.
    pub hello: Option<(u32, Hello)>,
    /// Sequence number of a beat.
    pub beat: Option<u64>,
    /// Messages the endpoint may send on top of earlier grants.
    pub credit: u32,
}

/// What one step of an endpoint says.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DraftFrame {
    /// Messages, in order.
    pub messages: Vec<ToTarget>,
    /// Messages that made no sense. Filled when read, ignored when written.
    pub malformed: Vec<Malformed>,
    /// In the first frame: who the endpoint is, and its protocol's version.
    pub welcome: Option<(u32, Welcome)>,
    /// Sequence number of a beat.
    pub beat: Option<u64>,
    /// Messages the target may send on top of earlier grants.
    pub credit: u32,
    /// How busy the endpoint is.
    pub load: Option<LoadReport>,
}

// Field keys: (number << 3) | 2, "length-delimited". All fields of frames are of this kind.
const MESSAGES: u8 = 1 << 3 | 2;
const INTRODUCTION: u8 = 2 << 3 | 2;
const BEAT: u8 = 3 << 3 | 2;
const CREDIT: u8 = 4 << 3 | 2;
const LOAD: u8 = 5 << 3 | 2;

/// Reads a frame from a target. Total: any bytes give a frame or an error.
pub fn decode_target_frame(bytes: Bytes) -> Result<TargetFrame, FrameError> {
    let mut frame = TargetFrame::default();
    read_fields(bytes, |key, field| {
        match key {
            MESSAGES => read_message(field, &mut frame.messages, &mut frame.malformed)?,
            INTRODUCTION => frame.hello = Some(read_hello(field)?),
            BEAT => frame.beat = Some(read::<proto::Beat>(field)?.sequence),
            CREDIT => add_credit(&mut frame.credit, field)?,
            _ => {}
        }
        Ok(())
    })?;
    Ok(frame)
}

/// Reads a frame from an endpoint. Total: any bytes give a frame or an error.
pub fn decode_draft_frame(bytes: Bytes) -> Result<DraftFrame, FrameError> {
    let mut frame = DraftFrame::default();
    read_fields(bytes, |key, field| {
        match key {
            MESSAGES => read_message(field, &mut frame.messages, &mut frame.malformed)?,
            INTRODUCTION => frame.welcome = Some(read_welcome(field)?),
            BEAT => frame.beat = Some(read::<proto::Beat>(field)?.sequence),
            CREDIT => add_credit(&mut frame.credit, field)?,
            LOAD => {
                let load = read::<proto::LoadReport>(field)?;
                let proto::LoadReport {
                    slots,
                    used,
                    draining,
                } = load;
                frame.load = Some(LoadReport {
                    slots,
                    used,
                    draining,
                });
            }
            _ => {}
        }
        Ok(())
    })?;
    Ok(frame)
}

/// Writes a frame of a target.
pub fn encode_target_frame(frame: &TargetFrame, out: &mut impl BufMut) {
    if let Some((version, hello)) = &frame.hello {
        let hello = hello.clone();
        write(
            out,
            INTRODUCTION,
            &proto::Hello {
                version: *version,
                instance: hello.instance,
                model_digest: hello.model_digest,
                tokenizer_digest: hello.tokenizer_digest,
                vocab_size: hello.vocab_size,
                path: hello.path,
                namespace: hello.consumer.namespace,
                deployment: hello.consumer.deployment,
                accounts: hello.accounts,
                late_entries: hello.late_entries,
            },
        );
    }
    write_control(out, frame.beat, frame.credit);
    for message in &frame.messages {
        write(out, MESSAGES, &message.to_proto());
    }
}

/// Writes a frame of an endpoint.
pub fn encode_draft_frame(frame: &DraftFrame, out: &mut impl BufMut) {
    if let Some((version, welcome)) = &frame.welcome {
        let welcome = welcome.clone();
        write(
            out,
            INTRODUCTION,
            &proto::Welcome {
                version: *version,
                instance: welcome.instance,
                model_digest: welcome.model_digest,
                tokenizer_digest: welcome.tokenizer_digest,
                vocab_size: welcome.vocab_size,
                path: welcome.path,
                slots: welcome.limits.slots,
                max_positions: welcome.limits.max_positions,
                max_frame: welcome.limits.max_frame,
            },
        );
    }
    write_control(out, frame.beat, frame.credit);
    if let Some(LoadReport {
        slots,
        used,
        draining,
    }) = frame.load
    {
        write(
            out,
            LOAD,
            &proto::LoadReport {
                slots,
                used,
                draining,
            },
        );
    }
    for message in &frame.messages {
        write(out, MESSAGES, &message.to_proto());
    }
}

/// A frame of either direction, as carriers see it.
pub(crate) trait Frame: Sized + Send + 'static {
    fn write(&self, out: &mut impl BufMut);
    fn read(bytes: Bytes) -> Result<Self, FrameError>;
}

impl Frame for TargetFrame {
    fn write(&self, out: &mut impl BufMut) {
        encode_target_frame(self, out);
    }

    fn read(bytes: Bytes) -> Result<Self, FrameError> {
        decode_target_frame(bytes)
    }
}

impl Frame for DraftFrame {
    fn write(&self, out: &mut impl BufMut) {
        encode_draft_frame(self, out);
    }

    fn read(bytes: Bytes) -> Result<Self, FrameError> {
        decode_draft_frame(bytes)
    }
}

/// Bytes `message` takes in a frame, at most: what a sender packs frames by.
pub(crate) trait FrameSize {
    fn frame_size(&self) -> usize;
}

/// Room for keys, lengths, identifiers and numbers around the arrays of one message.
const MESSAGE_OVERHEAD: usize = 128;

/// Most bytes of a number of 32 bits in protobuf's variable-length encoding.
const MAX_VARINT: usize = 5;

impl FrameSize for ToDraft {
    fn frame_size(&self) -> usize {
        let arrays = match self {
            Self::Open(open) => {
                4 * open.tokens.len()
                    + 8 * open.sampling.logit_bias.len()
                    + 4 * open.sampling.banned_until_min.len()
                    + 2
                    + open.salt.len()
                    + open.trace.map_or(0, |_| 2 + TraceContext::LEN)
            }
            Self::Outcome(outcome) => {
                let numbers = |window: &Proposals| window.len() + window.parents().len();
                let window = outcome.verifying.as_ref().map_or(0, numbers);
                4 * outcome.tokens.len() + MAX_VARINT * window
            }
            Self::Close { .. } => 0,
        };
        MESSAGE_OVERHEAD + arrays
    }
}

impl FrameSize for ToTarget {
    fn frame_size(&self) -> usize {
        let arrays = match self {
            Self::Window(window) => {
                let shape = window.proposals.parents().len();
                let arrays = MAX_VARINT * (shape + numbers(&window.q));
                4 * window.proposals.len() + arrays
            }
            Self::Entries(entries) => {
                let own = 2 * entries.keys.len() + entries.tokens.len();
                MAX_VARINT * (own + 3 * entries.sides.len() + numbers(&entries.q))
            }
            Self::Refused { reason, .. } => reason.len(),
            Self::Account(_) => MAX_VARINT * bounds::MOST,
            Self::Opened { .. } | Self::Resync(_) => 0,
        };
        MESSAGE_OVERHEAD + arrays
    }
}

/// Numbers that distributions are written with.
fn numbers(q: &[SparseDistribution]) -> usize {
    q.iter().map(|q| 1 + 2 * q.entries.len()).sum()
}

fn write_control(out: &mut impl BufMut, beat: Option<u64>, credit: u32) {
    if let Some(sequence) = beat {
        write(out, BEAT, &proto::Beat { sequence });
    }
    if credit > 0 {
        write(out, CREDIT, &proto::Credit { messages: credit });
    }
}

fn write(out: &mut impl BufMut, key: u8, message: &impl Message) {
    // `encode` can only fail for want of room, so room is made first; one write then.
    let len = message.encoded_len();
    let mut field = BytesMut::with_capacity(1 + prost::length_delimiter_len(len) + len);
    field.put_u8(key);
    if message.encode_length_delimited(&mut field).is_ok() {
        out.put(field);
    }
}

fn read_fields(
    mut bytes: Bytes,
    mut on_field: impl FnMut(u8, Bytes) -> Result<(), FrameError>,
) -> Result<(), FrameError> {
    let total = bytes.len();
    let mut fields = 0;
    while bytes.has_remaining() {
        fields += 1;
        if fields > MAX_FIELDS {
            return Err(FrameError::TooManyMessages);
        }
        let at = total - bytes.len();
        let fail = |problem: &str| FrameError::Bytes {
            at,
            problem: problem.into(),
        };
        let key = bytes.get_u8();
        // Later versions may add fields, of numbers that fit the one byte a key has here.
        if key & 7 != 2 || key & 0x80 != 0 || key >> 3 == 0 {
            return Err(fail("a field's key is not one of a frame's"));
        }
        let len =
            prost::decode_length_delimiter(&mut bytes).map_err(|error| fail(&error.to_string()))?;
        if len > bytes.len() {
            return Err(fail("a field is longer than the frame"));
        }
        on_field(key, bytes.split_to(len))?;
    }
    Ok(())
}

fn read<M: Message + Default>(field: Bytes) -> Result<M, FrameError> {
    M::decode(field).map_err(|error| FrameError::Value(error.to_string()))
}

fn read_message<M: Wire<Proto: Message + Default>>(
    field: Bytes,
    messages: &mut Vec<M>,
    malformed: &mut Vec<Malformed>,
) -> Result<(), FrameError> {
    if messages.len() + malformed.len() == MAX_MESSAGES {
        return Err(FrameError::TooManyMessages);
    }
    let session = peek_session(&field);
    let read = M::Proto::decode(field)
        .map_err(|error| error.to_string())
        .and_then(|message| M::from_proto(message).map_err(|error| error.to_string()));
    match read {
        Ok(message) => messages.push(message),
        Err(reason) => malformed.push(Malformed { session, reason }),
    }
    Ok(())
}

/// The session of a message that may be unreadable otherwise: its first field, if that is there.
fn peek_session(mut field: &[u8]) -> Option<SessionId> {
    const SESSION: u8 = 1 << 3;
    if field.first() != Some(&SESSION) {
        return None;
    }
    field.advance(1);
    prost::decode_length_delimiter(&mut field)
        .ok()
        .map(|id| SessionId(id as u64))
}

fn add_credit(credit: &mut u32, field: Bytes) -> Result<(), FrameError> {
    let more = read::<proto::Credit>(field)?.messages;
    *credit = credit.saturating_add(more);
    Ok(())
}

fn read_hello(field: Bytes) -> Result<(u32, Hello), FrameError> {
    let hello = read::<proto::Hello>(field)?;
    Ok((
        hello.version,
        Hello {
            instance: check_text("hello.instance", hello.instance)?,
            model_digest: check_text("hello.model_digest", hello.model_digest)?,
            tokenizer_digest: check_text("hello.tokenizer_digest", hello.tokenizer_digest)?,
            vocab_size: hello.vocab_size,
            path: check_text("hello.path", hello.path)?,
            consumer: Consumer {
                namespace: check_text("hello.namespace", hello.namespace)?,
                deployment: check_text("hello.deployment", hello.deployment)?,
            },
            accounts: hello.accounts,
            late_entries: hello.late_entries,
        },
    ))
}

fn read_welcome(field: Bytes) -> Result<(u32, Welcome), FrameError> {
    let welcome = read::<proto::Welcome>(field)?;
    Ok((
        welcome.version,
        Welcome {
            instance: check_text("welcome.instance", welcome.instance)?,
            model_digest: check_text("welcome.model_digest", welcome.model_digest)?,
            tokenizer_digest: check_text("welcome.tokenizer_digest", welcome.tokenizer_digest)?,
            vocab_size: welcome.vocab_size,
            path: check_text("welcome.path", welcome.path)?,
            limits: Limits {
                slots: welcome.slots,
                max_positions: welcome.max_positions,
                max_frame: welcome.max_frame,
            },
        },
    ))
}

#[cfg(test)]
mod tests;
