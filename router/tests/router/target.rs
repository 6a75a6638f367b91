//! A target that says what its script says.

use std::{
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use foretoken_artifacts::Tokenizer;
use foretoken_protocol::{
    Address, Listener,
    generate::{
        EmittedToken, EventSender, FinishReason, GenerateError, GenerateEvent, GenerateRequest,
        GenerateService, GenerationStats, Round, TargetInfo, TargetLoad, TokenLogprobs,
        serve_generate,
    },
};
use foretoken_speculation::TokenId;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::model_folder;

/// End of text of the shipped tokenizer.
pub(crate) const EOS: TokenId = TokenId(1);

/// Tokens that are verified in each round after the prompt's.
pub(crate) const DRAFTED: u32 = 4;

/// The shipped tokenizer, loaded once.
pub(crate) fn tokenizer() -> &'static Tokenizer {
    static ONCE: OnceLock<Tokenizer> = OnceLock::new();
    ONCE.get_or_init(|| Tokenizer::load(&model_folder()).expect("loads"))
}

/// What a target does.
#[derive(Clone, Debug)]
pub(crate) struct Script {
    /// The output, whatever the prompt. Position p of it is the same on all targets.
    pub(crate) output: Vec<TokenId>,
    /// Tokens per round after the first one.
    pub(crate) round: usize,
    /// Between rounds.
    pub(crate) pause: Duration,
    /// Opens between rounds, once each time that it is notified.
    pub(crate) gate: Option<Arc<Notify>>,
    /// Rounds after the prompt in which nothing is verified, before those in which something is.
    pub(crate) plain_rounds: u32,
    /// Is lost after a pause, before it has read the prompt, and takes nothing any more.
    pub(crate) dies_reading: bool,
    /// Is lost, once, when this much of the output is out, be it all of it.
    pub(crate) dies_after: Option<usize>,
    /// Begins no more than this many; others wait for ever.
    pub(crate) most_begun: usize,
    /// Turns every request away.
    pub(crate) busy: bool,
    /// Refuses every request.
    pub(crate) refuses: Option<String>,
    pub(crate) digest: String,
    pub(crate) tokenizer_digest: String,
    /// Waits for its client from this many unread bytes on.
    pub(crate) most_unread: usize,
    pub(crate) max_positions: u32,
    /// What it says at the end of how speculation went, beside rounds and their tokens.
    pub(crate) counted: GenerationStats,
}

impl Script {
    /// Says `text`, then end of text, three tokens a round.
    pub(crate) fn says(text: &str) -> Self {
        let mut output = tokenizer().encode(text, false).expect("encodes");
        output.push(EOS);
        Self {
            output,
            round: 3,
            pause: Duration::ZERO,
            gate: None,
            plain_rounds: 0,
            dies_reading: false,
            dies_after: None,
            most_begun: usize::MAX,
            busy: false,
            refuses: None,
            digest: "d1e5".into(),
            tokenizer_digest: tokenizer().digest().to_owned(),
            most_unread: usize::MAX,
            max_positions: 1024,
            counted: GenerationStats::default(),
        }
    }

    /// Waits from one round to the next.
    async fn wait(&self) {
        tokio::time::sleep(self.pause).await;
        if let Some(gate) = &self.gate {
            gate.notified().await;
        }
    }

    /// Goes on for a long time.
    pub(crate) fn endless() -> Self {
        let mut script = Self::says(" word");
        script.output = vec![script.output[0]; 1_000_000];
        script.pause = Duration::from_millis(2);
        script
    }
}

/// A running target.
pub(crate) struct Target {
    pub(crate) address: Address,
    name: String,
    script: Mutex<Script>,
    requests: Mutex<Vec<GenerateRequest>>,
    running: AtomicU32,
    cancelled: AtomicU32,
    tokens_sent: AtomicU32,
    stalls: AtomicU32,
}

impl Target {
    pub(crate) fn start(name: &str, script: Script, stop: CancellationToken) -> Arc<Self> {
        Self::start_at(name, script, &Address::loopback(0), stop)
    }

    pub(crate) fn start_at(
        name: &str,
        script: Script,
        address: &Address,
        stop: CancellationToken,
    ) -> Arc<Self> {
        let listener = Listener::bind(address).expect("binds");
        let target = Arc::new(Self {
            address: listener.address().clone(),
            name: name.to_owned(),
            script: Mutex::new(script),
            requests: Mutex::default(),
            running: AtomicU32::new(0),
            cancelled: AtomicU32::new(0),
            tokens_sent: AtomicU32::new(0),
            stalls: AtomicU32::new(0),
        });
        tokio::spawn(serve_generate(
            listener,
            Arc::new(Served(Arc::clone(&target))),
            stop,
        ));
        target
    }

    /// Requests so far.
    pub(crate) fn requests(&self) -> Vec<GenerateRequest> {
        self.requests.lock().unwrap().clone()
    }

    /// The only request so far.
    pub(crate) fn request(&self) -> GenerateRequest {
        let mut requests = self.requests();
        assert_eq!(requests.len(), 1);
        requests.remove(0)
    }

    pub(crate) fn running(&self) -> u32 {
        self.running.load(Ordering::SeqCst)
    }

    pub(crate) fn cancelled(&self) -> u32 {
        self.cancelled.load(Ordering::SeqCst)
    }

    pub(crate) fn tokens_sent(&self) -> u32 {
        self.tokens_sent.load(Ordering::SeqCst)
    }

    /// How often in succession it has looked in vain whether its client has read.
    pub(crate) fn stalls(&self) -> u32 {
        self.stalls.load(Ordering::SeqCst)
    }

    pub(crate) fn change(&self, change: impl FnOnce(&mut Script)) {
        change(&mut self.script.lock().unwrap());
    }

    async fn play(self: Arc<Self>, request: GenerateRequest, events: EventSender) {
        self.running.fetch_add(1, Ordering::SeqCst);
        if self.perform(&request, &events).await.is_err() {
            self.cancelled.fetch_add(1, Ordering::SeqCst);
        }
        self.running.fetch_sub(1, Ordering::SeqCst);
    }

    async fn perform(
        &self,
        request: &GenerateRequest,
        events: &EventSender,
    ) -> Result<(), foretoken_protocol::generate::Cancelled> {
        let script = self.script.lock().unwrap().clone();
        if script.dies_reading {
            tokio::time::sleep(script.pause).await;
            self.change(|script| script.busy = true);
            return Ok(());
        }
        if self.running() as usize > script.most_begun {
            events.cancelled().await;
            return Err(foretoken_protocol::generate::Cancelled);
        }
        let k = request.logprobs.unwrap_or(0);
        let prompt = &request.tokens[1.min(request.tokens.len())..request.prompt_len];
        let wanted = request.prompt_logprobs;
        events.send(GenerateEvent::Started {
            cached_tokens: 4.min(request.prompt_len as u32),
            prompt_logprobs: prompt
                .iter()
                .filter(|_| wanted)
                .map(|&t| told(t, k))
                .collect(),
            policy: "Speculative".into(),
            verification: "Coupled".into(),
        })?;
        let mut at = request.tokens.len() - request.prompt_len;
        let end = script.output.len().min(request.max_tokens as usize);
        let (mut rounds, mut accepted) = (0, 0);
        let mut reason = FinishReason::Length;
        while at < end {
            while events.unread() > script.most_unread && !events.is_cancelled() {
                self.stalls.fetch_add(1, Ordering::SeqCst);
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            self.stalls.store(0, Ordering::SeqCst);
            if self.dies(at) {
                return Ok(());
            }
            let n = if rounds == 0 {
                1
            } else {
                script.round.min(end - at)
            };
            let mut tokens = emitted(&script.output[at..at + n], request.logprobs);
            let ends = |t: TokenId| {
                (t == EOS && !request.ignore_eos) || request.stop_token_ids.contains(&t)
            };
            let stop = tokens.iter().position(|emitted| ends(emitted.token));
            tokens.truncate(stop.map_or(n, |i| i + 1));
            at += tokens.len();
            accepted += tokens.iter().filter(|emitted| emitted.accepted).count() as u32;
            self.tokens_sent
                .fetch_add(tokens.len() as u32, Ordering::SeqCst);
            let last = tokens.last().map(|emitted| emitted.token);
            let is_plain = rounds <= script.plain_rounds;
            let drafted = if is_plain { 0 } else { DRAFTED };
            let stats = request.tell_stats.then(|| Box::new(script.counted.clone()));
            events.send(GenerateEvent::Tokens(Round {
                drafted,
                tokens,
                stats,
            }))?;
            rounds += 1;
            if let Some(token) = last.filter(|_| stop.is_some()) {
                reason = FinishReason::Stop(token);
                break;
            }
            tokio::select! {
                () = script.wait() => {}
                () = events.cancelled() => return Err(foretoken_protocol::generate::Cancelled),
            }
        }
        if self.dies(at) {
            return Ok(());
        }
        let rounds = rounds.max(1) - 1;
        finish(events, reason, (rounds, accepted), &script.counted)
    }

    /// Whether the script wants it lost with so much of the output out.
    fn dies(&self, out: usize) -> bool {
        let mut script = self.script.lock().unwrap();
        let dies = script.dies_after.is_some_and(|n| out >= n);
        if dies {
            script.dies_after = None;
        }
        dies
    }
}

fn finish(
    events: &EventSender,
    reason: FinishReason,
    (rounds, accepted): (u32, u32),
    counted: &GenerationStats,
) -> Result<(), foretoken_protocol::generate::Cancelled> {
    let stats = GenerationStats {
        rounds,
        drafted: rounds * DRAFTED,
        accepted,
        cached_tokens: 4,
        policy: "Speculative".into(),
        prefill: Duration::from_millis(7),
        decode: Duration::from_millis(50),
        ..counted.clone()
    };
    let stats = Box::new(stats);
    events.send(GenerateEvent::Finished { reason, stats })
}

/// Made-up log-probabilities of a token and of `k` alternatives.
fn told(token: TokenId, k: u32) -> TokenLogprobs {
    let top = (0..k).map(|i| (TokenId(token.0 + i), -0.5 - i as f32));
    TokenLogprobs {
        logprob: -0.5,
        rank: 0,
        top: top.collect(),
    }
}

/// The tokens of a round, all but the last of them proposed.
fn emitted(tokens: &[TokenId], logprobs: Option<u32>) -> Vec<EmittedToken> {
    let emitted = |(i, &token)| EmittedToken {
        token,
        accepted: i + 1 < tokens.len(),
        logprobs: logprobs.map(|k| told(token, k)),
    };
    tokens.iter().enumerate().map(emitted).collect()
}

/// The target as the protocol sees it.
struct Served(Arc<Target>);

impl GenerateService for Served {
    fn generate(&self, request: GenerateRequest, events: EventSender) -> Result<(), GenerateError> {
        self.0.requests.lock().unwrap().push(request.clone());
        let script = self.0.script.lock().unwrap().clone();
        if script.busy {
            return Err(GenerateError::Busy {
                instance: self.0.name.clone(),
            });
        }
        if let Some(message) = script.refuses {
            return Err(GenerateError::Invalid(message));
        }
        tokio::spawn(Arc::clone(&self.0).play(request, events));
        Ok(())
    }

    fn info(&self) -> TargetInfo {
        let script = self.0.script.lock().unwrap().clone();
        TargetInfo {
            instance: self.0.name.clone(),
            model_digest: script.digest,
            path: "test/scripted".into(),
            tokenizer_digest: script.tokenizer_digest,
            vocab_size: 4096,
            max_positions: script.max_positions,
            policy: "Speculative".into(),
            load: TargetLoad::default(),
        }
    }
}
