//! gRPC's view of frames.

use std::marker::PhantomData;

use bytes::{Buf, Bytes};
use tonic::{
    Status,
    codec::{BufferSettings, Codec, DecodeBuf, Decoder, EncodeBuf, Encoder},
};

use super::frame::{
    DraftFrame, FrameError, TargetFrame, decode_draft_frame, decode_target_frame,
    encode_draft_frame, encode_target_frame,
};

/// A frame of either direction.
pub(crate) trait Frame: Sized + Send + 'static {
    fn write(&self, out: &mut EncodeBuf<'_>);
    fn read(bytes: Bytes) -> Result<Self, FrameError>;
}

impl Frame for TargetFrame {
    fn write(&self, out: &mut EncodeBuf<'_>) {
        encode_target_frame(self, out);
    }

    fn read(bytes: Bytes) -> Result<Self, FrameError> {
        decode_target_frame(bytes)
    }
}

impl Frame for DraftFrame {
    fn write(&self, out: &mut EncodeBuf<'_>) {
        encode_draft_frame(self, out);
    }

    fn read(bytes: Bytes) -> Result<Self, FrameError> {
        decode_draft_frame(bytes)
    }
}

/// Sends `E` and receives `D`.
#[derive(Debug)]
pub(crate) struct FrameCodec<E, D>(PhantomData<(E, D)>);

impl<E, D> Default for FrameCodec<E, D> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

/// Writes or reads `F`.
#[derive(Debug)]
pub(crate) struct FrameCoder<F>(PhantomData<F>);

impl<E: Frame, D: Frame> Codec for FrameCodec<E, D> {
    type Encode = E;
    type Decode = D;
    type Encoder = FrameCoder<E>;
    type Decoder = FrameCoder<D>;

    fn encoder(&mut self) -> Self::Encoder {
        FrameCoder(PhantomData)
    }

    fn decoder(&mut self) -> Self::Decoder {
        FrameCoder(PhantomData)
    }
}

impl<F: Frame> Encoder for FrameCoder<F> {
    type Item = F;
    type Error = Status;

    fn encode(&mut self, frame: F, out: &mut EncodeBuf<'_>) -> Result<(), Status> {
        frame.write(out);
        Ok(())
    }

    fn buffer_settings(&self) -> BufferSettings {
        BufferSettings::default()
    }
}

impl<F: Frame> Decoder for FrameCoder<F> {
    type Item = F;
    type Error = Status;

    fn decode(&mut self, bytes: &mut DecodeBuf<'_>) -> Result<Option<F>, Status> {
        let bytes = bytes.copy_to_bytes(bytes.remaining());
        F::read(bytes)
            .map(Some)
            .map_err(|error| Status::data_loss(error.to_string()))
    }
}
