//! What a link tells the engines at its ends.

use std::time::Duration;

use foretoken_speculation::{
    SessionId,
    message::{ToDraft, ToTarget},
};

use super::receipt::Received;

/// What a target says of itself when it dials.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hello {
    /// Name of this replica.
    pub instance: String,
    /// Digest of configuration and weights; the two ends' may differ.
    pub model_digest: String,
    /// Digest of the tokenizer; must be equal at both ends.
    pub tokenizer_digest: String,
    /// Entries of the vocabulary; must be equal at both ends.
    pub vocab_size: u32,
    /// Arithmetic path of the engine, for diagnosis.
    pub path: String,
    /// Whom it works for: quotas and shares of the endpoint go by it.
    pub consumer: Consumer,
    /// Whether it is to be told what is done for it
    /// ([`Account`](foretoken_speculation::message::Account)): earlier versions do not know that message.
    pub accounts: bool,
    /// Whether it takes [late](foretoken_speculation::message::Entries::late) entries: earlier versions
    /// would take them for others.
    pub late_entries: bool,
}

/// The deployment that a target belongs to: what its certificate says, where targets have to show one.
/// Elsewhere it is what the target says of itself, and quotas keep honest consumers apart and nobody
/// else.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Consumer {
    /// Namespace of the deployment.
    pub namespace: String,
    /// Its name; empty: none, so the target stands for itself.
    pub deployment: String,
}

/// What an endpoint says of itself when it accepts a target.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Welcome {
    /// Name of this replica.
    pub instance: String,
    /// Digest of configuration and weights.
    pub model_digest: String,
    /// Digest of the tokenizer.
    pub tokenizer_digest: String,
    /// Entries of the vocabulary.
    pub vocab_size: u32,
    /// Arithmetic path of the engine, for diagnosis.
    pub path: String,
    /// What it is willing to carry.
    pub limits: Limits,
}

/// What an endpoint is willing to carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Sessions at a time, over all targets.
    pub slots: u32,
    /// Longest sequence of a session, in tokens.
    pub max_positions: u32,
    /// Largest frame, in bytes.
    pub max_frame: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            slots: 64,
            max_positions: 1 << 20,
            max_frame: 4 << 20,
        }
    }
}

/// How busy an endpoint is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoadReport {
    /// Sessions it can hold, over all targets.
    pub slots: u32,
    /// Of these, taken.
    pub used: u32,
    /// Whether it is draining: what is open goes on, nothing new is opened.
    pub draining: bool,
}

/// A message that made no sense. Its session is to be ended; others are untouched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Malformed {
    /// The session it was about, if that much could be read.
    pub session: Option<SessionId>,
    /// What is wrong with it.
    pub reason: String,
}

/// What a dialled link tells the target.
#[derive(Clone, Debug, PartialEq)]
pub enum LinkEvent {
    /// The endpoint accepted: messages may be sent. No session is open yet.
    Up(Welcome),
    /// Messages of one frame, in order.
    Messages(Received<ToTarget>),
    /// How busy the endpoint is.
    Load(LoadReport),
    /// Messages of one frame that made no sense.
    Malformed(Received<Malformed>),
    /// Nothing has been heard for three beats (or something has again): prefer other endpoints.
    Suspect(bool),
    /// There is no link, and no session on it; it is dialled again by itself. Comes once per `Up`,
    /// and once for each further reason why attempts fail, up to some.
    Down(String),
    /// The endpoint and this target do not go together; it is asked again, rarely, since either
    /// may be replaced.
    Incompatible(String),
}

/// A link as the endpoint that accepted it sees it. Never used twice in a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkId(pub u64);

/// What accepted links tell the endpoint.
#[derive(Clone, Debug, PartialEq)]
pub enum ServerEvent {
    /// A compatible target has dialled.
    Up {
        /// Its link.
        link: LinkId,
        /// Who it is.
        hello: Hello,
    },
    /// Messages of one frame, in order.
    Messages {
        /// Where they came from.
        link: LinkId,
        /// The messages.
        messages: Received<ToDraft>,
    },
    /// Messages of one frame that made no sense.
    Malformed {
        /// Where they came from.
        link: LinkId,
        /// What is known of them.
        malformed: Received<Malformed>,
    },
    /// A target that dialled does not go together with this endpoint. It will come again, and
    /// again.
    Refused {
        /// Name of the target's replica.
        instance: String,
        /// Why.
        reason: String,
    },
    /// The link is gone: the leases of all its sessions have expired.
    Down {
        /// Which.
        link: LinkId,
        /// Why.
        reason: String,
    },
}

/// Why messages were not sent.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// The link is not up. Nothing is kept for later: sessions have to be opened anew anyway.
    #[error("the link is down")]
    Down,
    /// The peer does not keep up and the queue is full, or a message is larger than the peer's
    /// largest frame. The sessions named lost messages; the protocol heals them (a resync), or
    /// the sender closes them. Everything else was sent.
    #[error(
        "messages of {} sessions were dropped: the peer does not keep up or they are too large",
        sessions.len()
    )]
    Overflow {
        /// Sessions that lost messages.
        sessions: Vec<SessionId>,
    },
}

/// How a link behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkOptions {
    /// Time between beats.
    pub beat: Duration,
    /// Silence after which the peer is suspected.
    pub suspect_after: Duration,
    /// Silence after which the link is cut; and so it is when messages have waited five times as long for a
    /// peer that beats and takes none in.
    pub dead_after: Duration,
    /// First wait before dialling again; doubled up to `backoff_max`, with jitter.
    pub backoff_min: Duration,
    /// Longest wait before dialling again.
    pub backoff_max: Duration,
    /// Messages that wait to be sent before superseded ones are dropped.
    pub queue: usize,
    /// Largest frame to accept, in bytes.
    pub max_frame: usize,
}

impl Default for LinkOptions {
    fn default() -> Self {
        Self {
            beat: Duration::from_millis(250),
            suspect_after: Duration::from_millis(750),
            dead_after: Duration::from_secs(2),
            backoff_min: Duration::from_millis(50),
            backoff_max: Duration::from_secs(2),
            queue: 4096,
            max_frame: 4 << 20,
        }
    }
}

/// What decides whether two ends go together.
pub(super) struct Identity<'a> {
    version: u32,
    tokenizer_digest: &'a str,
    vocab_size: u32,
}

impl<'a> Identity<'a> {
    pub(super) fn of_target(version: u32, hello: &'a Hello) -> Self {
        let Hello {
            tokenizer_digest,
            vocab_size,
            ..
        } = hello;
        Self {
            version,
            tokenizer_digest,
            vocab_size: *vocab_size,
        }
    }

    pub(super) fn of_endpoint(version: u32, welcome: &'a Welcome) -> Self {
        let Welcome {
            tokenizer_digest,
            vocab_size,
            ..
        } = welcome;
        Self {
            version,
            tokenizer_digest,
            vocab_size: *vocab_size,
        }
    }
}

/// Why a target and an endpoint do not go together, if they do not.
pub(super) fn mismatch(target: &Identity<'_>, endpoint: &Identity<'_>) -> Option<String> {
    if target.version != endpoint.version {
        return Some(format!(
            "the target speaks protocol version {}, the endpoint {}: run the same release on both",
            target.version, endpoint.version
        ));
    }
    if target.vocab_size != endpoint.vocab_size {
        return Some(format!(
            "the target has a vocabulary of {} entries, the endpoint of {}: \
             choose a draft model with the target's tokenizer",
            target.vocab_size, endpoint.vocab_size
        ));
    }
    if target.tokenizer_digest != endpoint.tokenizer_digest {
        return Some(format!(
            "the target's tokenizer is {}, the endpoint's {}: \
             choose a draft model with the target's tokenizer",
            target.tokenizer_digest, endpoint.tokenizer_digest
        ));
    }
    None
}
