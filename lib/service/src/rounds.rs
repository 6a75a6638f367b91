//! Rounds as they happen, for whoever listens: `GET /rounds` on the observation port.
//!
//! ```text
//! engine thread --Feed::tell--> ring --Listener--> a line of JSON for each event
//! ```
//!
//! Nothing here can hold an engine up: it looks at a number, and only if somebody listens makes
//! events and puts them into a ring. A listener that falls behind loses the oldest events and is
//! told how many.
//!
//! Rounds tell how requests fare, not what they say: tokens are left out unless a listener asks
//! for them *and* the service was started with leave to show them. A target serves many tenants,
//! and its observation port is open to whoever scrapes metrics.

use std::{
    borrow::Cow,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use serde::{Deserialize, Serialize};
use tokio::sync::broadcast::{self, error::RecvError, error::TryRecvError};

/// Events that wait for the slowest listener.
const RING: usize = 4096;
/// Most bytes of lines that are written at once, about.
const CHUNK: usize = 16 << 10;

/// A name from a fixed list.
pub type Name = Cow<'static, str>;

/// One line of `/rounds`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Line {
    /// The first line: who speaks.
    Hello(Hello),
    /// A target decided.
    Round(Round),
    /// An endpoint was told what a target decided.
    Build(Build),
    /// Events were lost because the listener did not keep up.
    Missed {
        /// How many.
        events: u64,
    },
}

/// Who speaks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// `target` or `draft`.
    pub service: Name,
    /// Name of the replica.
    pub instance: String,
    /// Whether token ids are shown.
    pub tokens: bool,
}

/// A round of a request on a target: what became of one window.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Round {
    /// Milliseconds since the target began.
    pub at_ms: u64,
    /// Number of the request on this target.
    pub session: u64,
    /// Verdicts of the request so far, this one included; the first is that on the prompt.
    pub round: u32,
    /// Policy of the request.
    pub policy: Name,
    /// Where the window came from: `ahead`, `remote`, `local` or `none`.
    pub source: Name,
    /// If it was drafted ahead: place of the verdict it was drafted for among all that were
    /// drafted for, likeliest first, from 1. None for the rest of a window that was not verified
    /// whole.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub place: Option<u32>,
    /// Tokens of the window.
    pub window: u32,
    /// Of these, accepted.
    pub accepted: u32,
    /// Tokens emitted.
    pub emitted: u32,
    /// Microseconds from the verdict before; none for the first, and where its pages were lost between.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub took_us: Option<u64>,
    /// Microseconds of the step that verified it, with what it decided.
    pub verification_us: u64,
    /// Token rows of that step, of all requests.
    pub rows: u32,
    /// Of a window that was drawn, and verified by rejection: factor by which less was drawn of
    /// what the endpoint guesses, 1 being off.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub c: Option<f64>,
    /// Whether what follows had been drafted for this verdict; none if nothing was to be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hit: Option<bool>,
    /// Whether that was the first verdict of a binding, for which an endpoint has little time.
    #[serde(default, skip_serializing_if = "is_false")]
    pub first: bool,
    /// Tokens drafted ahead that came in time since the round before.
    #[serde(default)]
    pub received: u32,
    /// Tokens of the next window that had been drafted ahead.
    #[serde(default)]
    pub used: u32,
    /// Tokens drafted ahead that came too late, or twice, or out of order, since the round before.
    #[serde(default)]
    pub late_tokens: u32,
    /// What kept the lookahead chosen for the next window from being larger; none if it was not chosen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<Name>,
    /// Bytes of messages to and from the endpoint.
    pub bytes: u32,
    /// Whether the window did not come in time.
    pub late: bool,
    /// Why the output ended with this round, if it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<Name>,
    /// The tokens emitted, if they may be shown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<Vec<u32>>,
}

/// What an endpoint had done for a session when the verdict of a round came.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Build {
    /// Milliseconds since the endpoint began.
    pub at_ms: u64,
    /// Number of the link to the target.
    pub link: u64,
    /// What the target calls itself.
    #[serde(default)]
    pub target: String,
    /// Number of the request on that target.
    pub session: u64,
    /// Round that was decided.
    pub round: u32,
    /// Outcomes that were drafted for.
    pub outcomes: u32,
    /// Tokens drafted for them.
    pub drafted: u32,
    /// Of these, sent ahead.
    pub pushed: u32,
    /// Tokens sent ahead for what came about, in time.
    #[serde(default)]
    pub timely: u32,
    /// The same, not in time.
    #[serde(default)]
    pub late: u32,
    /// Whether the verdict came before all was drafted.
    pub cut: bool,
    /// What kept the endpoint from drafting for more outcomes; none if it drafted for none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<Name>,
    /// Microseconds of steps that drafted for this session ahead of a verdict, since the build before.
    #[serde(default)]
    pub ahead_us: u64,
    /// The same of steps that the target waited for, for a window or with a verdict.
    #[serde(default)]
    pub awaited_us: u64,
    /// Verdicts held against candidates since the build before.
    #[serde(default)]
    pub judged: u32,
    /// Rank of the latest decided token that was held against candidates, from 1; none if it was
    /// not among them, or if there were none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rank: Option<u32>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks for it")]
fn is_false(flag: &bool) -> bool {
    !flag
}

/// Where a service tells its rounds. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Feed(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    hello: Hello,
    ring: broadcast::Sender<Line>,
    listeners: AtomicUsize,
    /// Those of them that want tokens and may have them.
    readers: AtomicUsize,
}

/// Token ids were asked for and are not to be shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "token ids are what users said: this service shows them only if it is started with \
     --observe-tokens"
)]
pub struct Private;

impl Feed {
    /// The feed of the service called `service`; `tokens` is leave to show token ids.
    pub fn new(service: &'static str, instance: &str, tokens: bool) -> Self {
        Self(Arc::new(Shared {
            hello: Hello {
                service: service.into(),
                instance: instance.to_owned(),
                tokens,
            },
            ring: broadcast::Sender::new(RING),
            listeners: AtomicUsize::new(0),
            readers: AtomicUsize::new(0),
        }))
    }

    /// Whether anybody listens: if not, nothing need be told. One load.
    pub fn is_heard(&self) -> bool {
        self.0.listeners.load(Ordering::Relaxed) > 0
    }

    /// Whether anybody reads tokens who may.
    pub fn is_read(&self) -> bool {
        self.0.readers.load(Ordering::Relaxed) > 0
    }

    /// Tells an event. Never blocks; without a listener it is gone.
    pub fn tell(&self, line: Line) {
        // Somebody who listened a moment ago may have left.
        let _ = self.0.ring.send(line);
    }

    /// Listens from now on, to token ids too if `tokens`.
    pub fn listen(&self, tokens: bool) -> Result<Listener, Private> {
        let shared = Arc::clone(&self.0);
        if tokens && !shared.hello.tokens {
            return Err(Private);
        }
        let ring = shared.ring.subscribe();
        shared.listeners.fetch_add(1, Ordering::Relaxed);
        shared
            .readers
            .fetch_add(usize::from(tokens), Ordering::Relaxed);
        Ok(Listener {
            hello: Some(Hello {
                tokens,
                ..shared.hello.clone()
            }),
            shared,
            ring,
            tokens,
        })
    }
}

/// Somebody who listens, until it is dropped.
#[derive(Debug)]
pub struct Listener {
    shared: Arc<Shared>,
    ring: broadcast::Receiver<Line>,
    hello: Option<Hello>,
    tokens: bool,
}

impl Listener {
    /// The next lines, each with its line break; none if the service has ended. Waits for the
    /// first.
    pub async fn lines(&mut self) -> Option<String> {
        let mut text = String::new();
        if let Some(hello) = self.hello.take() {
            write(&mut text, &Line::Hello(hello));
            return Some(text);
        }
        match self.ring.recv().await {
            Ok(line) => self.add(&mut text, line),
            Err(RecvError::Lagged(events)) => write(&mut text, &Line::Missed { events }),
            Err(RecvError::Closed) => return None,
        }
        while text.len() < CHUNK {
            match self.ring.try_recv() {
                Ok(line) => self.add(&mut text, line),
                Err(TryRecvError::Lagged(events)) => write(&mut text, &Line::Missed { events }),
                Err(TryRecvError::Empty | TryRecvError::Closed) => break,
            }
        }
        Some(text)
    }

    fn add(&self, text: &mut String, mut line: Line) {
        if let Line::Round(round) = &mut line
            && !self.tokens
        {
            round.tokens = None;
        }
        write(text, &line);
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let shared = &self.shared;
        shared.listeners.fetch_sub(1, Ordering::Relaxed);
        shared
            .readers
            .fetch_sub(usize::from(self.tokens), Ordering::Relaxed);
    }
}

fn write(text: &mut String, line: &Line) {
    // Nothing of a line can fail to be written.
    if let Ok(json) = serde_json::to_string(line) {
        text.push_str(&json);
        text.push('\n');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round(session: u64) -> Line {
        Line::Round(Round {
            session,
            source: "ahead".into(),
            place: Some(2),
            tokens: Some(vec![7, 8]),
            ..Round::default()
        })
    }

    async fn next(listener: &mut Listener) -> Vec<Line> {
        let text = listener.lines().await.expect("the feed lives");
        let read = |line| serde_json::from_str(line).expect("a line reads back");
        text.lines().map(read).collect()
    }

    #[tokio::test]
    async fn whoever_listens_hears_who_speaks_and_then_every_round() {
        let feed = Feed::new("target", "t-0", true);
        assert!(!feed.is_heard());
        feed.tell(round(0));
        let mut listener = feed.listen(true).unwrap();
        assert!(feed.is_heard() && feed.is_read());
        let hello = Hello {
            service: "target".into(),
            instance: "t-0".into(),
            tokens: true,
        };
        assert_eq!(next(&mut listener).await, [Line::Hello(hello)]);
        feed.tell(round(1));
        feed.tell(round(2));
        assert_eq!(next(&mut listener).await, [round(1), round(2)]);
        drop(listener);
        assert!(!feed.is_heard() && !feed.is_read());
    }

    #[tokio::test]
    async fn tokens_are_shown_to_nobody_who_did_not_ask_or_may_not() {
        let closed = Feed::new("target", "t-0", false);
        assert_eq!(closed.listen(true).unwrap_err(), Private);
        assert!(!closed.is_heard());
        let feed = Feed::new("target", "t-0", true);
        let (mut reader, mut other) = (feed.listen(true).unwrap(), feed.listen(false).unwrap());
        next(&mut reader).await;
        next(&mut other).await;
        feed.tell(round(1));
        assert_eq!(next(&mut reader).await, [round(1)]);
        let text = other.lines().await.unwrap();
        assert!(!text.contains(r#""tokens""#), "{text}");
        drop(reader);
        assert!(feed.is_heard() && !feed.is_read());
    }

    #[tokio::test]
    async fn a_slow_listener_is_told_what_it_missed_and_holds_nobody_up() {
        let feed = Feed::new("draft", "d-0", false);
        let (mut slow, mut quick) = (feed.listen(false).unwrap(), feed.listen(false).unwrap());
        next(&mut slow).await;
        next(&mut quick).await;
        let told = RING as u64 + 10;
        for session in 0..told {
            feed.tell(round(session));
            assert_eq!(next(&mut quick).await.len(), 1);
        }
        let mut lines = Vec::new();
        while lines.len() <= RING {
            lines.extend(next(&mut slow).await);
        }
        assert_eq!(lines[0], Line::Missed { events: 10 });
        assert_eq!(lines.len(), RING + 1, "and it hears all the others");
    }
}
