//! gRPC's view of frames.

use std::marker::PhantomData;

use bytes::Buf;
use tonic::{
    Status,
    codec::{BufferSettings, Codec, DecodeBuf, Decoder, EncodeBuf, Encoder},
};

use super::frame::Frame;

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
