//! A toy target and a toy draft, to be joined by a link.

use std::{
    collections::HashMap,
    sync::mpsc::{Receiver, RecvTimeoutError},
    thread,
    time::{Duration, Instant},
};

use foretoken_protocol::link::{LinkEvent, LinkId, ServerEvent};
use foretoken_speculation::{
    Seed, SessionId, TokenId,
    fallback::OnMiss,
    message::{ToDraft, ToTarget, TreeBudget},
    noise::philox,
    policy::{
        Lookahead, Patience, Policy, SsdOptions,
        draft::{BranchWork, BuildId, DraftSession, ForkFeed, Planners, Wants},
        target::{Input, Next, TargetConfig, TargetSession, TargetStats, Verified},
    },
    sampling::{Sampler, SamplingParams, Scratch},
    verify::{Verification, coupled_tree},
};

use crate::carrier::LONG;

pub(crate) const VOCAB: u32 = 12;
const PROMPT: usize = 9;
const MAX_LEN: usize = 90;
pub(crate) const PASS: Duration = Duration::from_micros(200);

/// A toy language: logits depend on the last two tokens. A draft sees them blurred.
fn logits(context: &[TokenId], blur: f32) -> Vec<f32> {
    let last = context
        .iter()
        .rev()
        .take(2)
        .fold(7, |hash, token| hash * 31 + token.0);
    let unit = |v, salt| philox([v, last, salt, 0], [5, 9])[0] as f32 / u32::MAX as f32;
    (0..VOCAB)
        .map(|v| 4.0 * unit(v, 1) + blur * unit(v, 2))
        .collect()
}

fn prompt(session: u64) -> Vec<TokenId> {
    (0..PROMPT as u32)
        .map(|i| TokenId((i * 5 + session as u32) % VOCAB))
        .collect()
}

fn sampling(session: u64) -> SamplingParams {
    let temperature = if session.is_multiple_of(2) { 0.0 } else { 1.0 };
    SamplingParams {
        temperature,
        frequency_penalty: 0.3,
        ..SamplingParams::default()
    }
}

/// The first two sessions are drafted for after their verdicts, the others ahead of them.
fn policy(session: u64) -> Policy {
    let lookahead = Lookahead::Fixed(4);
    let fallback = match session {
        ..3 => return Policy::Speculative(lookahead),
        3 | 4 => OnMiss::Remote,
        5 => OnMiss::Nothing,
        _ => OnMiss::Local,
    };
    Policy::Ssd(SsdOptions {
        lookahead,
        budget: 10,
        fallback,
        ..SsdOptions::default()
    })
}

/// What plain decoding gives for `session`.
pub(crate) fn plain(session: u64) -> Vec<TokenId> {
    let mut tokens = prompt(session);
    let mut scratch = Scratch::new();
    let mut sampler =
        Sampler::new(sampling(session), Seed(session), &tokens, tokens.len()).expect("is valid");
    while tokens.len() < MAX_LEN {
        let token = sampler.choose(&logits(&tokens, 0.0), &mut scratch);
        sampler.push(token);
        tokens.push(token);
    }
    tokens
}

/// The tokens of a session, and what they took.
pub(crate) type Output = (Vec<TokenId>, TargetStats);

/// Waits until the link is up, then runs `sessions` on a target whose link is `send` and `events`; their outputs and statistics.
pub(crate) fn run_target(
    sessions: &[u64],
    pass: Duration,
    mut send: impl FnMut(Vec<ToDraft>),
    events: &Receiver<LinkEvent>,
) -> Vec<Output> {
    let mut rows: Vec<Row> = sessions.iter().map(|session| Row::new(*session)).collect();
    let begun = Instant::now();
    let mut opens = Vec::new();
    while opens.is_empty() {
        let event = events.recv_timeout(LONG).expect("the link comes up");
        for row in &mut rows {
            row.hear(begun.elapsed(), &event, &mut opens);
        }
    }
    send(opens);
    loop {
        // A pass takes time, or all would be over before anything happens to the link.
        thread::sleep(pass);
        let mut messages = Vec::new();
        let mut wake = None;
        let mut busy = false;
        for row in &mut rows {
            match row.step(begun.elapsed(), &mut messages) {
                Progress::Verified => busy = true,
                Progress::Waits(until) => {
                    wake = Some(wake.map_or(until, |at: Duration| at.min(until)));
                }
                Progress::Finished => {}
            }
        }
        if !messages.is_empty() {
            send(messages);
        }
        if !busy && wake.is_none() {
            return rows
                .into_iter()
                .map(|row| (row.target.tokens().to_vec(), row.target.stats()))
                .collect();
        }
        let patience = wake.filter(|_| !busy).map_or(Duration::ZERO, |until| {
            until.saturating_sub(begun.elapsed())
        });
        let mut next = events.recv_timeout(patience);
        let mut messages = Vec::new();
        while let Ok(event) = next {
            for row in &mut rows {
                row.hear(begun.elapsed(), &event, &mut messages);
            }
            next = events.try_recv().map_err(|_| RecvTimeoutError::Timeout);
        }
        if !messages.is_empty() {
            send(messages);
        }
    }
}

struct Row {
    target: TargetSession,
    sampler: Sampler,
    scratch: Scratch,
    local: bool,
    trees: bool,
}

enum Progress {
    Verified,
    Waits(Duration),
    Finished,
}

impl Row {
    fn new(session: u64) -> Self {
        let tokens = prompt(session);
        let sampler = Sampler::new(sampling(session), Seed(session), &tokens, tokens.len());
        let config = TargetConfig {
            session: SessionId(session),
            policy: policy(session),
            sampling: sampling(session),
            verification: Verification::Coupled,
            seed: Seed(session),
            prompt_len: tokens.len() as u32,
            max_len: MAX_LEN,
            vocab_size: VOCAB,
            patience: Patience::new(
                1.5,
                Duration::from_millis(2),
                Duration::from_millis(40),
                Duration::from_millis(40),
            ),
            reopen_after: Duration::from_millis(5),
            salt: [0; 32],
            keeps_nothing: false,
            trace: None,
        };
        let target = TargetSession::new(config, tokens);
        Self {
            target,
            sampler: sampler.expect("is valid"),
            scratch: Scratch::new(),
            local: session == 6,
            trees: session.is_multiple_of(2),
        }
    }

    fn step(&mut self, now: Duration, messages: &mut Vec<ToDraft>) -> Progress {
        let window = match self.target.next(now) {
            Next::Verify(window) => window.clone(),
            Next::Wait { until } => return Progress::Waits(until),
            Next::Finished => return Progress::Finished,
        };
        let base = self.target.tokens().to_vec();
        let logits: Vec<Vec<f32>> = (0..=window.len() as u32)
            .map(|node| logits(&[&base[..], &window.spelled(node)].concat(), 0.0))
            .collect();
        let row = |node: u32| &logits[node as usize][..];
        let verdict = coupled_tree(&mut self.sampler, &mut self.scratch, &window, row);
        let mut tokens = window.spelled(verdict.node);
        let accepted = tokens.len() as u32;
        tokens.push(verdict.decided);
        let verified = Verified {
            tokens: &tokens,
            accepted,
            suggested: 4,
            // Half of the sessions verify trees.
            tree: self.trees.then(|| TreeBudget::new(12, 0.001)),
            // The first of two tokens may come after the second again.
            local: &base[base.len() - 2..][..usize::from(self.local)],
            ..Verified::default()
        };
        messages.extend(self.target.handle(now, Input::Verified(verified)).messages);
        Progress::Verified
    }

    fn hear(&mut self, now: Duration, event: &LinkEvent, messages: &mut Vec<ToDraft>) {
        let mut tell = |input: Input<'_>| messages.extend(self.target.handle(now, input).messages);
        match event {
            LinkEvent::Up(_) => tell(Input::LinkUp),
            LinkEvent::Down(_) => tell(Input::LinkDown),
            LinkEvent::Messages(received) => {
                for message in received.iter() {
                    tell(Input::Received(message));
                }
            }
            // A window that cannot be read is a window that does not come.
            LinkEvent::Malformed(_)
            | LinkEvent::Load(_)
            | LinkEvent::Suspect(_)
            | LinkEvent::Incompatible(_) => {}
        }
    }
}

/// A session on the draft engine, and the tails of its forks.
struct Served {
    session: DraftSession,
    /// Nodes of a tree under verification, behind the tokens before its root.
    tail: Vec<(TokenId, Option<u32>)>,
    build: Option<BuildId>,
    tails: Vec<Vec<(TokenId, Option<u32>)>>,
}

impl Served {
    fn new(id: SessionId) -> Self {
        Self {
            session: DraftSession::new(id, VOCAB, 4096),
            tail: Vec::new(),
            build: None,
            tails: Vec::new(),
        }
    }

    /// Makes a step; what it has to say, if it had anything to do.
    fn step(
        &mut self,
        blur: f32,
        planners: &mut Planners,
        scratch: &mut Scratch,
    ) -> Option<Vec<ToTarget>> {
        let session = &mut self.session;
        session.plan(planners);
        if let Some(work) = session.work() {
            self.tail.clear();
            if let Some(parents) = work.parents {
                let nodes = work.tokens.iter().zip(parents);
                self.tail.extend(nodes.map(|(&t, &parent)| (t, parent)));
                let (ticket, keep) = (work.ticket, work.keep);
                let trunk = &session.tokens()[..keep];
                let rows: Vec<_> = (0..self.tail.len())
                    .map(|node| logits(&[trunk, &path(&self.tail, node)].concat(), blur))
                    .collect();
                let rows: Vec<&[f32]> = rows.iter().map(Vec::as_slice).collect();
                let fed = rows.len();
                return Some(Vec::from_iter(session.stepped(ticket, fed, &rows, scratch)));
            }
            let (ticket, fed, end) = (
                work.ticket,
                work.tokens.len(),
                work.keep + work.tokens.len(),
            );
            let wanted = match work.wants {
                Wants::None => 0,
                Wants::Last => 1,
                Wants::All => fed,
            };
            let rows: Vec<Vec<f32>> = (end - wanted + 1..=end)
                .map(|end| logits(&session.tokens()[..end], blur))
                .collect();
            let rows: Vec<&[f32]> = rows.iter().map(Vec::as_slice).collect();
            return Some(Vec::from_iter(session.stepped(ticket, fed, &rows, scratch)));
        }
        let trunk = session.tokens().to_vec();
        let root = session.decided().len().saturating_sub(1);
        let work = session.branches()?;
        let ticket = work.ticket;
        if self.build.replace(work.build) != Some(work.build) {
            self.tails.clear();
        }
        self.tails.resize(work.forks().count(), Vec::new());
        let tail = &self.tail;
        let sees = |feed: &ForkFeed<'_>| match feed.path.last() {
            Some(&node) => [&trunk[..root], &path(tail, node as usize)].concat(),
            None => trunk[..feed.trunk_len as usize].to_vec(),
        };
        let rows = branch(&work, sees, &mut self.tails, blur);
        let rows: Vec<&[f32]> = rows.iter().map(Vec::as_slice).collect();
        Some(Vec::from_iter(session.branched(ticket, &rows, scratch)))
    }
}

/// Logits of a step of branches: each row sees its trunk and its path through the tail.
fn branch(
    work: &BranchWork<'_>,
    sees: impl Fn(&ForkFeed<'_>) -> Vec<TokenId>,
    tails: &mut [Vec<(TokenId, Option<u32>)>],
    blur: f32,
) -> Vec<Vec<f32>> {
    let mut rows = Vec::new();
    for (feed, tail) in work.forks().zip(tails) {
        for (&token, &parent) in feed.tokens.iter().zip(feed.parents) {
            tail.push((token, parent));
            let own = path(tail, tail.len() - 1);
            rows.push(logits(&[sees(&feed), own].concat(), blur));
        }
    }
    rows
}

/// The tokens on the way to a node of a tail.
fn path(tail: &[(TokenId, Option<u32>)], node: usize) -> Vec<TokenId> {
    let mut path = Vec::new();
    let mut next = Some(node);
    while let Some(node) = next {
        path.push(tail[node].0);
        next = tail[node].1.map(|parent| parent as usize);
    }
    path.reverse();
    path
}

/// A draft engine that serves until its events end.
pub(crate) fn run_draft(
    blur: f32,
    mut send: impl FnMut(LinkId, Vec<ToTarget>),
    events: &Receiver<ServerEvent>,
) {
    let mut sessions: HashMap<(LinkId, SessionId), Served> = HashMap::new();
    let mut planners = Planners::default();
    let mut scratch = Scratch::new();
    let mut idle = false;
    loop {
        let patience = if idle {
            Duration::from_secs(60)
        } else {
            Duration::ZERO
        };
        let mut answers: HashMap<LinkId, Vec<ToTarget>> = HashMap::new();
        match events.recv_timeout(patience) {
            Ok(ServerEvent::Messages { link, messages }) => {
                for message in messages {
                    answers
                        .entry(link)
                        .or_default()
                        .extend(hear(&mut sessions, link, &message));
                }
            }
            Ok(ServerEvent::Down { link, .. }) => sessions.retain(|(of, _), _| *of != link),
            Ok(ServerEvent::Up { .. } | ServerEvent::Refused { .. })
            | Err(RecvTimeoutError::Timeout) => {}
            // Its session has lost its thread, and no other.
            Ok(ServerEvent::Malformed { link, malformed }) => {
                for malformed in malformed {
                    let session = malformed.session;
                    let session = session.and_then(|id| sessions.remove(&(link, id)));
                    let refusal =
                        session.and_then(|mut served| served.session.evict(&malformed.reason));
                    answers.entry(link).or_default().extend(refusal);
                }
            }
            Err(RecvTimeoutError::Disconnected) => return,
        }
        idle = true;
        for ((link, _), served) in &mut sessions {
            let Some(said) = served.step(blur, &mut planners, &mut scratch) else {
                continue;
            };
            idle = false;
            answers.entry(*link).or_default().extend(said);
        }
        for (link, messages) in answers {
            if !messages.is_empty() {
                send(link, messages);
            }
        }
    }
}

fn hear(
    sessions: &mut HashMap<(LinkId, SessionId), Served>,
    link: LinkId,
    message: &ToDraft,
) -> Option<ToTarget> {
    let id = match message {
        ToDraft::Open(open) => open.session,
        ToDraft::Outcome(outcome) => outcome.session,
        ToDraft::Close { session, .. } => *session,
    };
    if let ToDraft::Open(_) = message {
        sessions
            .entry((link, id))
            .or_insert_with(|| Served::new(id));
    }
    match sessions.get_mut(&(link, id)) {
        Some(served) => served.session.handle(message),
        None => DraftSession::answer_unknown(message),
    }
}
