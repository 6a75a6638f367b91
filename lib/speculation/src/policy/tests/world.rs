//! Both sides in virtual time over a link that drops, duplicates, reorders, delays and is cut.

use alloc::collections::BTreeMap;

use super::{engine::ToyEngine, *};
use crate::{
    message::{Cutoffs, SparseDistribution, TreeBudget},
    proposal::Laws,
    saguaro::Saguaro,
    verify::{Drawn, DrawnTree, Verdict, Verification, coupled_tree, drawn_chain, drawn_tree},
};

/// What the link does to messages, in thousandths.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Faults {
    pub(super) drop: u32,
    pub(super) duplicate: u32,
    pub(super) delay: u32,
    pub(super) cut: u32,
    /// The endpoint forgets everything; the link stays.
    pub(super) restart: u32,
    /// The endpoint is lost and another takes over; what the old one sent may still arrive.
    pub(super) moved: u32,
    /// Not all of a window is verified.
    pub(super) clip: u32,
    /// The endpoint has no pages for branches.
    pub(super) pages: u32,
    /// The target's host makes a proposal.
    pub(super) local: u32,
}

impl Faults {
    /// All of them, now and then.
    pub(super) const ALL: Self = Self {
        drop: 60,
        duplicate: 100,
        delay: 150,
        cut: 15,
        restart: 15,
        moved: 15,
        clip: 200,
        pages: 100,
        local: 100,
    };
}

/// How proposals that were drawn are decided on, as which verification, given all rows.
pub(super) type Decide = fn(&mut Sampler, &mut Scratch, Drawn<'_>, u32, &[Vec<f32>]) -> Verdict;

/// As it should be.
fn decide(
    sampler: &mut Sampler,
    scratch: &mut Scratch,
    drawn: Drawn<'_>,
    verification: u32,
    rows: &[Vec<f32>],
) -> Verdict {
    let row = |i: usize| &rows[i][..];
    drawn_chain(sampler, scratch, drawn, verification, row, |_, _| {})
}

/// Things that happen, by time; ties in order of scheduling.
enum Event {
    ToDraft(ToDraft),
    ToTarget(ToTarget),
    DraftStep,
    TargetWakes,
    PassDone,
    LinkUp,
}

/// A continuation that the endpoint sent.
type Entry = (OutcomeKey, Vec<TokenId>);

pub(super) struct World {
    now: Duration,
    events: BTreeMap<(Duration, u64), Event>,
    count: u64,
    faults: Faults,
    dice: u32,
    seed: u64,
    params: SamplingParams,
    pub(super) target: TargetSession,
    sampler: Sampler,
    pub(super) draft: Option<DraftSession>,
    /// Positions of the draft model.
    pub(super) draft_len: usize,
    engine: ToyEngine,
    planners: Planners,
    /// Continuations that the endpoint sent, by epoch and round, and whether they were begun late.
    sent: BTreeMap<(Epoch, Round, bool), Vec<Entry>>,
    /// Continuations that were held against sequential decoding.
    pub(super) checked: usize,
    /// Those of them that were begun late.
    pub(super) late: usize,
    /// What the target has for trees.
    pub(super) tree: Option<TreeBudget>,
    /// How likely proposals have to be.
    pub(super) cutoffs: Cutoffs,
    /// Round and size of each tree that was verified.
    pub(super) trees: Vec<(u32, usize)>,
    draft_busy: bool,
    pass: bool,
    up: bool,
    blur: f32,
    scratch: Scratch,
    pub(super) decide: Decide,
    /// Rounds whose verdict asks for nothing to be drafted ahead.
    pub(super) refrains: fn(u32) -> bool,
    /// How proposals are lowered, by round.
    pub(super) lowering: fn(u32) -> Saguaro,
    /// What verification takes proposals to have been drawn from.
    pub(super) told: fn(&Laws) -> Vec<SparseDistribution>,
}

impl World {
    pub(super) fn new(
        policy: Policy,
        params: SamplingParams,
        seed: u64,
        faults: Faults,
        blur: f32,
        max_len: usize,
    ) -> Self {
        let coupled = Verification::Coupled;
        Self::verifying(coupled, policy, params, seed, faults, blur, max_len)
    }

    #[expect(clippy::too_many_arguments, reason = "those of a world, and one more")]
    pub(super) fn verifying(
        verification: Verification,
        policy: Policy,
        params: SamplingParams,
        seed: u64,
        faults: Faults,
        blur: f32,
        max_len: usize,
    ) -> Self {
        let tokens = prompt();
        let sampler = Sampler::new(params.clone(), Seed(seed), &tokens, tokens.len()).unwrap();
        let config = TargetConfig {
            session: SessionId(3),
            policy,
            sampling: params.clone(),
            verification,
            seed: Seed(seed),
            prompt_len: tokens.len() as u32,
            max_len,
            vocab_size: VOCAB,
            patience: Patience::new(1.5, 500 * US, 20_000 * US, 5_000 * US),
            reopen_after: 10_000 * US,
            salt: [0; 32],
            keeps_nothing: false,
            trace: None,
        };
        Self {
            now: Duration::ZERO,
            events: BTreeMap::new(),
            count: 0,
            faults,
            dice: 0,
            seed,
            params,
            target: TargetSession::new(config, tokens),
            sampler,
            draft: None,
            draft_len: 4096,
            engine: ToyEngine::default(),
            planners: Planners::default(),
            sent: BTreeMap::new(),
            checked: 0,
            late: 0,
            tree: None,
            cutoffs: Cutoffs::default(),
            trees: Vec::new(),
            draft_busy: false,
            pass: false,
            up: false,
            blur,
            scratch: Scratch::new(),
            decide,
            refrains: |_| false,
            lowering: |_| Saguaro::default(),
            told: |laws| laws.lowered().into_owned(),
        }
    }

    fn roll(&mut self) -> u32 {
        self.dice += 1;
        philox([self.dice, 1, 2, 3], [self.seed as u32, 77])[0] % 1000
    }

    fn at(&mut self, delay: Duration, event: Event) {
        self.count += 1;
        self.events.insert((self.now + delay, self.count), event);
    }

    fn send(&mut self, event: impl Fn() -> Event) {
        if !self.up || self.roll() < self.faults.drop {
            return;
        }
        let copies = if self.roll() < self.faults.duplicate {
            2
        } else {
            1
        };
        for _ in 0..copies {
            let slow = self.roll() < self.faults.delay;
            let delay = if slow { 50 * US * self.roll() } else { 40 * US };
            self.at(delay, event());
        }
    }

    fn input(&mut self, input: Input<'_>) {
        let effects = self.target.handle(self.now, input);
        for message in effects.messages {
            self.send(|| Event::ToDraft(message.clone()));
        }
        self.drive_target();
    }

    fn drive_target(&mut self) {
        if self.pass {
            return;
        }
        match self.target.next(self.now) {
            Next::Verify(_) => {
                self.pass = true;
                self.at(1000 * US, Event::PassDone);
            }
            Next::Wait { until } => {
                let delay = until.saturating_sub(self.now);
                self.at(delay, Event::TargetWakes);
            }
            Next::Finished => {}
        }
    }

    fn pass_done(&mut self) {
        self.pass = false;
        let base = self.target.tokens().to_vec();
        let Next::Verify(window) = self.target.next(self.now) else {
            return;
        };
        let mut window = window.clone();
        if self.roll() < self.faults.clip {
            window.truncate(window.len() / 2);
        }
        if !window.is_chain() {
            let round = self.target.stats().rounds;
            self.trees.push((round, window.len()));
        }
        let rows: Vec<Vec<f32>> = (0..=window.len() as u32)
            .map(|node| logits(&[&base[..], &window.spelled(node)].concat(), 0.0))
            .collect();
        let (sampler, scratch) = (&mut self.sampler, &mut self.scratch);
        let row = |node: u32| &rows[node as usize][..];
        let (mut tokens, decided) = match self.target.verification() {
            Verification::Coupled => {
                let verdict = coupled_tree(sampler, scratch, &window, row);
                (window.spelled(verdict.node), verdict.decided)
            }
            Verification::Rejection { .. } => {
                let q = (self.told)(self.target.laws());
                let round = self.target.stats().rounds;
                if window.is_chain() {
                    let window = window.tokens();
                    let drawn = Drawn {
                        window,
                        q: &q[..q.len().min(window.len())],
                    };
                    let verdict = (self.decide)(sampler, scratch, drawn, round, &rows);
                    (window[..verdict.accepted].to_vec(), verdict.decided)
                } else {
                    let (tree, q) = (&window, &q[..]);
                    let drawn = DrawnTree { tree, q };
                    let verdict = drawn_tree(sampler, scratch, drawn, round, row, |_, _| {});
                    (window.spelled(verdict.node), verdict.decided)
                }
            }
        };
        let accepted = tokens.len() as u32;
        tokens.push(decided);
        let offers = self.roll() < self.faults.local;
        self.input(Input::Verified(Verified {
            tokens: &tokens,
            accepted,
            tree: self.tree,
            cutoffs: self.cutoffs,
            suggested: 4,
            local: if offers { &base[base.len() - 3..] } else { &[] },
            fallback: offers.then_some(Fallback::Local),
            refrains: (self.refrains)(self.target.stats().rounds),
            saguaro: (self.lowering)(self.target.stats().rounds),
            ..Verified::default()
        }));
        if self.up {
            self.misfortunes();
        }
    }

    fn misfortunes(&mut self) {
        if self.roll() < self.faults.restart {
            self.draft = None;
        }
        if self.roll() < self.faults.moved {
            self.draft = None;
            self.input(Input::LinkDown);
            self.input(Input::LinkUp);
        }
        if self.roll() < self.faults.cut {
            self.up = false;
            self.draft = None;
            self.events
                .retain(|_, e| !matches!(e, Event::ToDraft(_) | Event::ToTarget(_)));
            self.input(Input::LinkDown);
            let outage = 10 * US * self.roll();
            self.at(outage, Event::LinkUp);
        }
    }

    fn draft_receives(&mut self, message: &ToDraft) {
        let answer = match (&mut self.draft, message) {
            (Some(draft), _) => draft.handle(message),
            (None, ToDraft::Open(_)) => {
                let mut draft = DraftSession::new(SessionId(3), VOCAB, self.draft_len);
                self.engine = ToyEngine::default();
                let answer = draft.handle(message);
                self.draft = Some(draft);
                answer
            }
            (None, _) => DraftSession::answer_unknown(message),
        };
        self.answer(answer);
        self.drive_draft();
    }

    fn answer(&mut self, answer: Option<ToTarget>) {
        if let Some(answer) = answer {
            self.send(|| Event::ToTarget(answer.clone()));
        }
    }

    fn drive_draft(&mut self) {
        if !self.draft_busy {
            self.draft_busy = true;
            self.at(80 * US, Event::DraftStep);
        }
    }

    /// A step of the draft: planned now, its end comes with messages in between.
    fn draft_step(&mut self) {
        self.draft_busy = false;
        let short = self.faults.pages > 0 && self.roll() < self.faults.pages;
        // Some builds have as many outcomes in every step, others ever fewer.
        let widths = [0; 4].map(|_| 1 + self.roll() % 40);
        let Some(draft) = &mut self.draft else { return };
        self.engine.join(draft);
        draft.plan(&mut self.planners);
        draft.grant(&widths);
        if short {
            draft.drop_branches();
        }
        // Prompts go in by chunks.
        let Some(step) = self.engine.step(draft, 5) else {
            return;
        };
        let fits = |context: &Vec<TokenId>| context.len() <= self.draft_len;
        assert!(step.contexts().all(fits), "past the last position");
        assert!(self.engine.slots() <= self.draft_len, "past the last slot");
        // Whatever is in the inbox now arrives during the step.
        let waiting: Vec<_> = self
            .events
            .iter()
            .filter(|((time, _), e)| *time <= self.now + 40 * US && matches!(e, Event::ToDraft(_)))
            .map(|(key, _)| *key)
            .collect();
        for key in waiting {
            if let Some(Event::ToDraft(message)) = self.events.remove(&key) {
                self.draft_busy = true;
                self.draft_receives(&message);
            }
        }
        self.draft_busy = false;
        if let Some(draft) = &mut self.draft {
            let blur = self.blur;
            let said = step.report(draft, &mut self.scratch, |context| logits(context, blur));
            for answer in said {
                if let (ToTarget::Entries(part), Some(draft)) = (&answer, &mut self.draft) {
                    draft.note_pushed(part);
                    self.check(part);
                }
                self.answer(Some(answer));
            }
            self.drive_draft();
        }
    }

    /// Holds a part of entries against sequential decoding of the draft's own language: what a
    /// branch drew is what comes after the sequence, the first tokens of the window, the decided
    /// token, and what it drew before.
    fn check(&mut self, part: &Entries) {
        let Some(draft) = &self.draft else { return };
        let of = (part.epoch, part.round, part.late);
        let known = self.sent.entry(of).or_default();
        if part.before == 0 {
            known.clear();
            known.extend(part.keys.iter().map(|&key| (key, Vec::new())));
        }
        assert!(part.tokens.len() <= known.len(), "a part is a column");
        for ((key, continuation), &token) in known.iter_mut().zip(&part.tokens) {
            assert_eq!(continuation.len(), part.before as usize);
            if token == Entries::ENDED {
                assert!(part.before > 0, "a continuation has a token");
                continuation.push(token);
                continue;
            }
            let mut context = draft.decided().to_vec();
            assert_eq!(context.len(), part.base_len as usize);
            let whole = draft.tokens().len() - context.len();
            assert!(!part.late || key.accepted as usize == whole);
            match draft.tree() {
                None => {
                    let end = context.len() + key.accepted as usize;
                    context.extend_from_slice(&draft.tokens()[context.len()..end]);
                }
                Some(tree) => {
                    context.extend(tree.spelled(key.accepted));
                    assert_eq!(tree.child(key.accepted, key.token), None);
                }
            }
            context.push(key.token);
            context.extend_from_slice(continuation);
            let sampler = Sampler::new(
                self.params.clone(),
                Seed(self.seed),
                &context,
                prompt().len(),
            );
            let row = logits(&context, self.blur);
            if self.target.verification() == Verification::Coupled {
                let expected = sampler.unwrap().choose(&row, &mut self.scratch);
                assert_eq!(token, expected, "{key:?} after {continuation:?}");
            }
            continuation.push(token);
            self.checked += 1;
            self.late += usize::from(part.late);
        }
        for side in &part.sides {
            let own = &known[side.entry as usize].1;
            assert_ne!(
                own[side.after as usize], side.token,
                "a side is another token"
            );
        }
    }

    /// Branches that were confirmed, and those whose KV was kept.
    pub(super) fn joined(&self) -> (usize, usize) {
        (self.engine.offered, self.engine.joined)
    }

    /// Runs to the end; the tokens, and how long it took.
    pub(super) fn run(&mut self) -> (Vec<TokenId>, Duration) {
        self.up = true;
        self.input(Input::LinkUp);
        let mut steps = 0;
        while self.target.next(self.now) != Next::Finished {
            let ((time, _), event) = self
                .events
                .pop_first()
                .expect("the target waits for nothing");
            self.now = time;
            steps += 1;
            assert!(steps < 200_000, "no progress");
            match event {
                Event::ToDraft(message) => self.draft_receives(&message),
                Event::ToTarget(message) => self.input(Input::Received(&message)),
                Event::DraftStep => self.draft_step(),
                Event::TargetWakes => self.drive_target(),
                Event::PassDone => self.pass_done(),
                Event::LinkUp => {
                    self.up = true;
                    self.input(Input::LinkUp);
                }
            }
        }
        (self.target.tokens().to_vec(), self.now)
    }
}
