//! The router's side.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use futures::Stream;

use super::{GenerateError, GenerateEvent, GenerateRequest, TargetInfo};
use crate::Address;

/// Speaks to one target. Connects when first used and again after a loss; clones share the
/// connection.
#[derive(Clone, Debug)]
pub struct GenerateClient {
    instance: String,
    address: Address,
}

impl GenerateClient {
    /// A client of the target called `instance` (the name errors carry) at `address`. Connects
    /// lazily, on the runtime that makes the first call.
    pub fn new(instance: impl Into<String>, address: Address) -> Self {
        Self { instance: instance.into(), address }
    }

    /// Starts a completion. Errors before the first event may come from the call or from the
    /// stream's first item.
    pub async fn generate(
        &self,
        request: GenerateRequest,
    ) -> Result<GenerateStream, GenerateError> {
        drop(request);
        Err(self.lost("not connected"))
    }

    /// What the target is and how busy. Also how a router checks health: a target that does not
    /// answer within about two seconds is [`GenerateError::Lost`].
    pub async fn info(&self) -> Result<TargetInfo, GenerateError> {
        Err(self.lost("not connected"))
    }

    /// Name of the target.
    pub fn instance(&self) -> &str {
        &self.instance
    }

    /// Where it is.
    pub fn address(&self) -> &Address {
        &self.address
    }

    fn lost(&self, cause: &str) -> GenerateError {
        GenerateError::Lost { instance: self.instance.clone(), cause: cause.into() }
    }
}

/// The answer to a request; dropping it cancels the request. After `Finished` or an error it ends.
#[derive(Debug)]
pub struct GenerateStream {
    done: bool,
}

impl Stream for GenerateStream {
    type Item = Result<GenerateEvent, GenerateError>;

    fn poll_next(mut self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.done = true;
        Poll::Ready(None)
    }
}
