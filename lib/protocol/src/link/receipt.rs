//! What was received, and the room that it takes until it is taken in.

use std::{fmt, ops::Deref, sync::Arc, vec};

/// Messages of one frame, in order. Once they are dropped (all of them, if they are iterated over), the
/// peer may send as many more: whoever sends faster than an engine takes in has to wait, and nothing
/// piles up.
pub struct Received<M> {
    messages: Vec<M>,
    receipt: Receipt,
}

/// The same, one after the other.
#[derive(Debug)]
pub struct IntoIter<M> {
    messages: vec::IntoIter<M>,
    _receipt: Receipt,
}

/// Who has to be told that messages were taken in.
pub(super) trait Creditor: Send + Sync {
    /// So many of a connection's were.
    fn taken_in(&self, connection: u64, messages: u32);
}

/// Says so when it is dropped.
struct Receipt {
    owed: Option<(Arc<dyn Creditor>, u64)>,
    messages: u32,
}

impl<M> Received<M> {
    /// Messages of a connection, as many as the peer was granted.
    pub(super) fn new(messages: Vec<M>, creditor: &Arc<dyn Creditor>, connection: u64) -> Self {
        let receipt = Receipt {
            owed: Some((Arc::clone(creditor), connection)),
            messages: messages.len() as u32,
        };
        Self { messages, receipt }
    }
}

impl Drop for Receipt {
    fn drop(&mut self) {
        if let Some((creditor, connection)) = self.owed.take() {
            creditor.taken_in(connection, self.messages);
        }
    }
}

/// Messages that no link has carried.
impl<M> From<Vec<M>> for Received<M> {
    fn from(messages: Vec<M>) -> Self {
        let receipt = Receipt {
            owed: None,
            messages: 0,
        };
        Self { messages, receipt }
    }
}

impl<M> IntoIterator for Received<M> {
    type Item = M;
    type IntoIter = IntoIter<M>;

    fn into_iter(self) -> IntoIter<M> {
        IntoIter {
            messages: self.messages.into_iter(),
            _receipt: self.receipt,
        }
    }
}

impl<M> Iterator for IntoIter<M> {
    type Item = M;

    fn next(&mut self) -> Option<M> {
        self.messages.next()
    }
}

impl<M> Deref for Received<M> {
    type Target = [M];

    fn deref(&self) -> &[M] {
        &self.messages
    }
}

/// The copy is none that the peer has sent.
impl<M: Clone> Clone for Received<M> {
    fn clone(&self) -> Self {
        self.messages.clone().into()
    }
}

impl<M: PartialEq> PartialEq for Received<M> {
    fn eq(&self, other: &Self) -> bool {
        self.messages == other.messages
    }
}

impl<M: fmt::Debug> fmt::Debug for Received<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.messages.fmt(f)
    }
}

impl fmt::Debug for Receipt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Receipt").finish_non_exhaustive()
    }
}
