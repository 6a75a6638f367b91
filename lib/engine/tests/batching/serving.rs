//! A server in small: scheduler and engine together, with windows of which some are right.

use std::collections::BTreeMap;

use foretoken_engine::batch::{Engine, Feed, Reuse, SeqId, Wants};
use foretoken_engine::kv::Salt;
use foretoken_engine::schedule::{Ask, Limits, Plan, Request, RequestId, Running, Scheduler};
use foretoken_speculation::sampling::{Sampler, SamplingParams, Scratch};
use foretoken_speculation::{Seed, TokenId};
use proptest::prelude::*;

use crate::simulated;

/// A request and how its draft behaves.
#[derive(Clone, Debug)]
struct Client {
    arrives: usize,
    /// Which of a few texts the prompt begins, and its length.
    text: usize,
    prompt: usize,
    output: usize,
    greedy: bool,
    /// Proposed tokens a round, and of 8 how many are right.
    window: usize,
    skill: u64,
    /// Of 8 steps, how many it waits for its draft.
    waits: u64,
    tenant: Option<u8>,
}

impl Client {
    fn prompt(&self) -> Vec<TokenId> {
        let token = |i: usize| if i < 50 { i % 7 } else { (i + self.text) % 11 };
        (0..self.prompt).map(|i| TokenId(token(i) as u32)).collect()
    }

    fn reuse(&self) -> Reuse {
        self.tenant
            .map_or(Reuse::Off, |tenant| Reuse::Within(Salt([tenant; 32])))
    }

    fn sampler(&self, seed: u64) -> Sampler {
        let temperature = if self.greedy { 0.0 } else { 1.0 };
        let params = SamplingParams {
            temperature,
            ..SamplingParams::default()
        };
        let prompt = self.prompt();
        Sampler::new(params, Seed(seed), &prompt, prompt.len()).unwrap()
    }

    /// What the request must get: one token a step in an engine of its own.
    fn naive(&self, seed: u64) -> Vec<TokenId> {
        let mut engine = Engine::new(simulated(64));
        let (mut sampler, mut scratch) = (self.sampler(seed), Scratch::new());
        let seq = engine.open(&[], Reuse::Off);
        let mut tokens = self.prompt();
        for i in 0.. {
            let feed = Feed {
                seq,
                tokens: &tokens[i..=i],
                tree: None,
                logits: Wants::Last,
            };
            let logits = engine.step(&[feed]).unwrap();
            if i + 1 == tokens.len() {
                let token = sampler.choose(logits.row(0, 0), &mut scratch);
                sampler.push(token);
                tokens.push(token);
            }
            if tokens.len() == self.prompt + self.output {
                break;
            }
        }
        tokens
    }
}

/// A request being served.
struct Job {
    client: Client,
    /// All tokens so far.
    tokens: Vec<TokenId>,
    /// What naive decoding gives; drafts look it up.
    truth: Vec<TokenId>,
    sampler: Sampler,
    seq: Option<SeqId>,
    window: Vec<TokenId>,
}

struct Server {
    engine: Engine,
    scheduler: Scheduler,
    jobs: BTreeMap<RequestId, Job>,
    scratch: Scratch,
    chance: u64,
    preempted: usize,
}

impl Server {
    fn draw(&mut self, below: u64) -> u64 {
        self.chance = self
            .chance
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(99);
        (self.chance >> 33) % below
    }

    fn submit(&mut self, id: u64, client: &Client) {
        let max_tokens = client.prompt + client.output;
        let request = Request {
            id: RequestId(id),
            owner: id,
            tokens: client.prompt,
            max_tokens,
        };
        self.scheduler.submit(request).unwrap();
        let job = Job {
            client: client.clone(),
            tokens: client.prompt(),
            truth: client.naive(id),
            sampler: client.sampler(id),
            seq: None,
            window: Vec::new(),
        };
        self.jobs.insert(request.id, job);
    }

    /// The proposals of a job's draft.
    fn draft(&mut self, id: RequestId) -> Vec<TokenId> {
        let Client { window, skill, .. } = self.jobs[&id].client;
        let known = self.jobs[&id].tokens.len();
        (known..known + window)
            .map(|i| {
                let right = self.draw(8) < skill;
                let guess = TokenId(self.draw(32) as u32);
                self.jobs[&id]
                    .truth
                    .get(i)
                    .copied()
                    .filter(|_| right)
                    .unwrap_or(guess)
            })
            .collect()
    }

    fn observe(&mut self) -> Vec<Running> {
        let running: Vec<_> = self.scheduler.running().collect();
        let mut observed = Vec::new();
        for id in running {
            let window = self.draft(id);
            let waits = self.draw(8) < self.jobs[&id].client.waits;
            let job = self.jobs.get_mut(&id).unwrap();
            job.window = window;
            let seq = job.seq.unwrap();
            let len = self.engine.len(seq).unwrap();
            observed.push(Running {
                id,
                len,
                tokens: job.tokens.len(),
                owned_pages: self.engine.owned_pages(seq).unwrap(),
                shares_tail: self.engine.shares_tail(seq).unwrap(),
                ask: if waits {
                    Ask::SitOut
                } else {
                    Ask::Run {
                        window: job.window.len(),
                    }
                },
            });
        }
        observed
    }

    fn step(&mut self) {
        let observed = self.observe();
        let plan = self.scheduler.plan(self.engine.free_pages(), &observed);
        for id in &plan.preempt {
            let seq = self.jobs.get_mut(id).unwrap().seq.take().unwrap();
            self.engine.close(seq).unwrap();
            self.preempted += 1;
        }
        for chunk in &plan.admit {
            let job = self.jobs.get_mut(&chunk.id).unwrap();
            job.seq = Some(self.engine.open(&job.tokens, job.client.reuse()));
        }
        let fed = self.rows(&plan);
        let feeds: Vec<_> = fed
            .iter()
            .map(|(id, tokens)| {
                let seq = self.jobs[id].seq.unwrap();
                Feed {
                    seq,
                    tokens,
                    tree: None,
                    logits: Wants::All,
                }
            })
            .collect();
        if feeds.is_empty() {
            return;
        }
        self.engine.step(&feeds).unwrap();
        for (i, (id, tokens)) in fed.iter().enumerate() {
            self.judge(i, *id, tokens);
        }
        self.engine.audit().unwrap();
    }

    /// The tokens that a plan feeds.
    fn rows(&self, plan: &Plan) -> Vec<(RequestId, Vec<TokenId>)> {
        let mut fed = Vec::new();
        for decode in &plan.decode {
            let job = &self.jobs[&decode.id];
            let last = job.tokens.last().into_iter();
            fed.push((
                decode.id,
                last.chain(&job.window[..decode.window]).copied().collect(),
            ));
        }
        for chunk in plan.prefill.iter().chain(&plan.admit) {
            let job = &self.jobs[&chunk.id];
            let len = self.engine.len(job.seq.unwrap()).unwrap();
            let end = (len + chunk.rows).min(job.tokens.len());
            fed.push((chunk.id, job.tokens[len..end].to_vec()));
        }
        fed
    }

    /// Takes the tokens that a feed's logits decide, up to the first that was not proposed.
    fn judge(&mut self, feed: usize, id: RequestId, fed: &[TokenId]) {
        let job = self.jobs.get_mut(&id).unwrap();
        let seq = job.seq.unwrap();
        let base = self.engine.len(seq).unwrap() - fed.len();
        for row in 0..fed.len() {
            if base + row + 1 < job.tokens.len() {
                continue;
            }
            let logits = self.engine.logits().row(feed, row);
            let token = job.sampler.choose(logits, &mut self.scratch);
            job.sampler.push(token);
            job.tokens.push(token);
            if fed.get(row + 1) != Some(&token) {
                break;
            }
        }
        let known = job.tokens.len();
        let len = self.engine.len(seq).unwrap().min(known - 1);
        self.engine.truncate(seq, len).unwrap();
        let done = known == job.truth.len();
        if done {
            assert_eq!(job.tokens, job.truth, "request {id:?}");
            self.engine.close(seq).unwrap();
            self.scheduler.finish(id);
            self.jobs.remove(&id);
        }
    }
}

fn clients() -> impl Strategy<Value = Vec<Client>> {
    let client = (
        (
            0..30_usize,
            0..2_usize,
            1..120_usize,
            1..50_usize,
            any::<bool>(),
        ),
        (
            0..8_usize,
            0..9_u64,
            0..6_u64,
            prop::option::weighted(0.8, 0..2_u8),
        ),
    )
        .prop_map(
            |((arrives, text, prompt, output, greedy), (window, skill, waits, tenant))| Client {
                arrives,
                text,
                prompt,
                output,
                greedy,
                window,
                skill,
                waits,
                tenant,
            },
        );
    prop::collection::vec(client, 1..14)
}

/// Serves everyone, and counts preemptions.
fn serve(clients: &[Client], limits: Limits, chance: u64) -> usize {
    let mut server = Server {
        engine: Engine::new(simulated(limits.pages)),
        scheduler: Scheduler::new(limits),
        jobs: BTreeMap::new(),
        scratch: Scratch::new(),
        chance,
        preempted: 0,
    };
    let last = clients
        .iter()
        .map(|client| client.arrives)
        .max()
        .unwrap_or(0);
    let mut now = 0;
    while now <= last || !server.jobs.is_empty() {
        for (id, client) in (0..)
            .zip(clients)
            .filter(|(_, client)| client.arrives == now)
        {
            server.submit(id, client);
        }
        server.step();
        now += 1;
        assert!(now < 50_000, "somebody starves");
    }
    assert_eq!(server.engine.audit().unwrap().referenced, 0);
    server.preempted
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    #[test]
    fn every_request_gets_the_tokens_of_naive_decoding(
        clients in clients(),
        running in 1..9_usize,
        rows in 1..90_usize,
        prefill_rows in 1..90_usize,
        pages in 11..40_usize,
        chance in any::<u64>(),
    ) {
        let limits = Limits { running, waiting: 20, rows, prefill_rows, pages, positions: 2048 };
        serve(&clients, limits, chance);
    }
}

#[test]
fn preempted_requests_get_the_tokens_of_naive_decoding() {
    let client = |i| Client {
        arrives: i,
        text: 0,
        prompt: 20 + i,
        output: 49,
        greedy: false,
        window: 4,
        skill: 6,
        waits: 1,
        tenant: Some(0),
    };
    let clients: Vec<_> = (0..8).map(client).collect();
    let limits = Limits {
        running: 8,
        waiting: 8,
        rows: 64,
        prefill_rows: 32,
        pages: 11,
        positions: 2048,
    };
    assert!(serve(&clients, limits, 1) > 0, "nobody was preempted");
}
