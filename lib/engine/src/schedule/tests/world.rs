//! A world of random requests.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

/// A request of the random world.
#[derive(Clone, Debug)]
struct Visitor {
    arrives: usize,
    prompt: usize,
    output: usize,
    window: usize,
    /// Out of 4 steps, how many it sits out.
    idle: u64,
}

#[derive(Clone, Copy, Debug)]
struct Progress {
    len: usize,
    tokens: usize,
    max_tokens: usize,
}

/// Requests over a pool without sharing, and a generator of chance.
struct World {
    scheduler: Scheduler,
    visitors: Vec<Visitor>,
    running: BTreeMap<RequestId, Progress>,
    /// Tokens of requests that were preempted.
    kept: BTreeMap<RequestId, usize>,
    finished: usize,
    chance: u64,
}

impl World {
    fn draw(&mut self, below: u64) -> u64 {
        self.chance = self
            .chance
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(99);
        (self.chance >> 33) % below
    }

    fn free_pages(&self) -> usize {
        let used: usize = self
            .running
            .values()
            .map(|progress| pages_for(progress.len))
            .sum();
        self.scheduler.limits.pages - used
    }

    fn observe(&mut self) -> Vec<Running> {
        let order: Vec<RequestId> = self.scheduler.running().collect();
        let observe = |id: RequestId| {
            let Progress { len, tokens, .. } = self.running[&id];
            let Visitor { window, idle, .. } = self.visitors[id.0 as usize];
            let ask = if self.draw(4) < idle {
                Ask::SitOut
            } else {
                Ask::Run { window }
            };
            Running {
                id,
                len,
                tokens,
                owned_pages: pages_for(len),
                shares_tail: false,
                ask,
            }
        };
        order.into_iter().map(observe).collect()
    }

    fn step(&mut self, now: usize) {
        for (id, visitor) in (0..).map(RequestId).zip(&self.visitors) {
            if visitor.arrives == now {
                let Visitor { prompt, output, .. } = *visitor;
                let request = Request {
                    id,
                    owner: id.0,
                    tokens: prompt,
                    max_tokens: prompt + output,
                };
                self.scheduler.submit(request).unwrap();
            }
        }
        let observed = self.observe();
        let queue = ids(self.scheduler.waiting());
        let plan = self.scheduler.plan(self.free_pages(), &observed);
        self.check(&plan, &observed, &queue);
        for id in &plan.preempt {
            self.kept
                .insert(*id, self.running.remove(id).unwrap().tokens);
        }
        for chunk in &plan.admit {
            let Visitor { prompt, output, .. } = self.visitors[chunk.id.0 as usize];
            let tokens = self.kept.remove(&chunk.id).unwrap_or(prompt);
            let progress = Progress {
                len: 0,
                tokens,
                max_tokens: prompt + output,
            };
            self.running.insert(chunk.id, progress);
        }
        for chunk in plan.prefill.iter().chain(&plan.admit) {
            let progress = self.running.get_mut(&chunk.id).unwrap();
            progress.len += chunk.rows;
            assert!(progress.len <= progress.tokens);
            progress.tokens += usize::from(progress.len == progress.tokens);
        }
        for decode in &plan.decode {
            let accepted = self.draw(decode.window as u64 + 1) as usize;
            let progress = self.running.get_mut(&decode.id).unwrap();
            progress.len += 1 + accepted;
            progress.tokens = progress.len + 1;
            assert!(progress.tokens <= progress.max_tokens);
        }
        let done = |progress: &Progress| progress.tokens >= progress.max_tokens;
        let done: Vec<_> = self
            .running
            .iter()
            .filter(|(_, progress)| done(progress))
            .map(|(id, _)| *id)
            .collect();
        for id in done {
            self.running.remove(&id);
            self.scheduler.finish(id);
            self.finished += 1;
        }
    }

    /// What every plan keeps to.
    fn check(&self, plan: &Plan, observed: &[Running], queue: &[u64]) {
        let limits = self.scheduler.limits;
        let state = |id: RequestId| observed.iter().find(|state| state.id == id).unwrap();
        let prefill: usize = plan
            .prefill
            .iter()
            .chain(&plan.admit)
            .map(|chunk| chunk.rows)
            .sum();
        let rows: usize = plan.decode.iter().map(|decode| 1 + decode.window).sum();
        assert!(prefill + rows <= limits.rows, "rows {rows} + {prefill}");
        let decodes = |s: &&Running| s.ask != Ask::SitOut && s.tokens == s.len + 1;
        let survives = |s: &&Running| !plan.preempt.contains(&s.id);
        if observed.iter().filter(survives).any(|s| decodes(&s)) {
            assert!(prefill <= limits.prefill_rows, "prefill {prefill}");
        }

        let freed: usize = plan.preempt.iter().map(|id| state(*id).owned_pages).sum();
        let fed = plan
            .decode
            .iter()
            .map(|decode| (decode.id, 1 + decode.window));
        let fed = fed.chain(plan.prefill.iter().map(|chunk| (chunk.id, chunk.rows)));
        let pages = |(id, rows)| pages_for(state(id).len + rows) - pages_for(state(id).len);
        let admitted = plan.admit.iter().map(|chunk| pages_for(chunk.rows));
        let taken = fed.clone().map(pages).chain(admitted).sum::<usize>();
        assert!(taken <= self.free_pages() + freed, "{taken} pages");

        for decode in &plan.decode {
            let Ask::Run { window } = state(decode.id).ask else {
                panic!("{decode:?} sits out")
            };
            assert!(decodes(&state(decode.id)) && decode.window <= window);
        }
        let mut fed: Vec<_> = fed.map(|(id, _)| id).collect();
        fed.extend(&plan.preempt);
        fed.sort_unstable();
        assert!(
            fed.windows(2).all(|pair| pair[0] != pair[1]),
            "fed twice, or fed and preempted"
        );

        assert_eq!(
            ids(plan.admit.iter().map(|chunk| chunk.id)),
            queue[..plan.admit.len()]
        );
        let asks = |s: &&Running| s.ask != Ask::SitOut;
        if let Some(oldest) = observed.first().filter(asks) {
            assert!(
                fed.contains(&oldest.id),
                "the oldest request does not progress"
            );
        }
        let one_row = |s: &Running| pages_for(s.len + 1) - pages_for(s.len);
        let least: usize = observed.iter().filter(asks).map(one_row).sum();
        if least <= self.free_pages() {
            assert_eq!(
                plan.preempt,
                [],
                "preempted although everyone could have a row"
            );
            let served = |s: &Running| plan.decode.iter().any(|decode| decode.id == s.id);
            assert!(
                observed.iter().filter(decodes).all(served),
                "somebody cannot decode"
            );
        }
    }
}

fn visitors() -> impl Strategy<Value = Vec<Visitor>> {
    let visitor = (0..60_usize, 1..100_usize, 1..60_usize, 0..9_usize, 0..3_u64).prop_map(
        |(arrives, prompt, output, window, idle)| Visitor {
            arrives,
            prompt,
            output,
            window,
            idle,
        },
    );
    prop::collection::vec(visitor, 1..20)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn random_arrivals_all_finish_within_the_budgets(
        visitors in visitors(),
        running in 1..9_usize,
        rows in 1..70_usize,
        prefill_rows in 1..70_usize,
        pages in 10..40_usize,
        chance in any::<u64>(),
    ) {
        let limits = Limits { running, waiting: 20, rows, prefill_rows, pages, positions: 160 };
        let mut world = World {
            scheduler: Scheduler::new(limits),
            visitors,
            running: BTreeMap::new(),
            kept: BTreeMap::new(),
            finished: 0,
            chance,
        };
        let mut now = 0;
        while world.finished < world.visitors.len() {
            world.step(now);
            now += 1;
            prop_assert!(now < 20_000, "somebody starves");
        }
        prop_assert_eq!(world.free_pages(), pages);
        prop_assert_eq!(world.scheduler.running().len() + world.scheduler.waiting().len(), 0);
    }
}
