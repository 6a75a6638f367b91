//! Unit tests, and a world of random requests.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

fn limits() -> Limits {
    Limits {
        running: 8,
        waiting: 8,
        rows: 64,
        prefill_rows: 32,
        pages: 100,
        positions: 1000,
    }
}

fn request(id: u64, tokens: usize, max_tokens: usize) -> Request {
    Request {
        id: RequestId(id),
        tokens,
        max_tokens,
    }
}

/// A request that decodes after `len` tokens with KV.
fn decoding(id: u64, len: usize, window: usize) -> Running {
    let ask = Ask::Run { window };
    let owned_pages = pages_for(len);
    Running {
        id: RequestId(id),
        len,
        tokens: len + 1,
        owned_pages,
        shares_tail: false,
        ask,
    }
}

/// A request with `len` of its `tokens` in KV.
fn prefilling(id: u64, len: usize, tokens: usize) -> Running {
    Running {
        tokens,
        ..decoding(id, len, 0)
    }
}

/// A scheduler in which the requests of these numbers, of 10 tokens each, run.
fn with_running(limits: Limits, count: u64) -> Scheduler {
    let mut scheduler = Scheduler::new(Limits {
        prefill_rows: 1000,
        rows: 1000,
        ..limits
    });
    for id in 0..count {
        scheduler.submit(request(id, 10, 900)).unwrap();
    }
    let admitted = scheduler.plan(1000, &[]).admit;
    assert_eq!(admitted.len() as u64, count);
    scheduler.limits = limits;
    scheduler
}

fn ids(requests: impl Iterator<Item = RequestId>) -> Vec<u64> {
    requests.map(|id| id.0).collect()
}

fn windows(plan: &Plan) -> Vec<(u64, usize)> {
    plan.decode
        .iter()
        .map(|decode| (decode.id.0, decode.window))
        .collect()
}

fn chunks(chunks: &[Chunk]) -> Vec<(u64, usize)> {
    chunks
        .iter()
        .map(|chunk| (chunk.id.0, chunk.rows))
        .collect()
}

#[test]
fn decoding_rows_come_first_and_a_long_prompt_gets_its_share_of_the_rest() {
    let mut scheduler = with_running(limits(), 3);
    let running = [
        prefilling(0, 10, 500),
        decoding(1, 10, 4),
        decoding(2, 10, 4),
    ];
    let plan = scheduler.plan(90, &running);
    assert_eq!(windows(&plan), [(1, 4), (2, 4)]);
    assert_eq!(chunks(&plan.prefill), [(0, 32)]);
}

#[test]
fn a_prompt_gets_all_rows_when_nobody_decodes() {
    let mut scheduler = with_running(limits(), 2);
    let sits_out = Running {
        ask: Ask::SitOut,
        ..decoding(1, 10, 4)
    };
    let plan = scheduler.plan(90, &[prefilling(0, 10, 500), sits_out]);
    assert_eq!(
        (windows(&plan), chunks(&plan.prefill)),
        (vec![], vec![(0, 64)])
    );
}

#[test]
fn prompts_are_served_in_order_of_arrival() {
    let mut scheduler = with_running(limits(), 3);
    let running = [
        prefilling(0, 10, 30),
        prefilling(1, 10, 60),
        prefilling(2, 10, 30),
    ];
    let plan = scheduler.plan(90, &running);
    assert_eq!(chunks(&plan.prefill), [(0, 20), (1, 44)]);
}

#[test]
fn windows_share_what_prefill_leaves_and_short_ones_are_served_whole() {
    let mut scheduler = with_running(
        Limits {
            rows: 16,
            prefill_rows: 4,
            ..limits()
        },
        4,
    );
    let running = [
        decoding(0, 10, 8),
        decoding(1, 10, 1),
        decoding(2, 10, 8),
        prefilling(3, 10, 500),
    ];
    let plan = scheduler.plan(90, &running);
    assert_eq!(chunks(&plan.prefill), [(3, 4)]);
    // 16 rows less 4 of prefill less 3 to decode: 9 for windows.
    assert_eq!(windows(&plan), [(0, 4), (1, 1), (2, 4)]);
}

#[test]
fn windows_shrink_to_the_pages_there_are() {
    let mut scheduler = with_running(limits(), 2);
    // The first one's page has room for 5 more rows, the second's for 2.
    let running = [decoding(0, 11, 8), decoding(1, 14, 8)];
    assert_eq!(windows(&scheduler.plan(0, &running)), [(0, 4), (1, 1)]);
    // The second one comes to need the page first.
    assert_eq!(windows(&scheduler.plan(1, &running)), [(0, 4), (1, 8)]);
    assert_eq!(windows(&scheduler.plan(2, &running)), [(0, 8), (1, 8)]);
}

#[test]
fn a_window_never_takes_what_an_admission_needs() {
    let mut scheduler = with_running(
        Limits {
            rows: 10,
            ..limits()
        },
        1,
    );
    scheduler.submit(request(7, 40, 90)).unwrap();
    let plan = scheduler.plan(90, &[decoding(0, 10, 8)]);
    assert_eq!(
        (windows(&plan), chunks(&plan.admit)),
        (vec![(0, 0)], vec![(7, 9)])
    );

    // Now pages are what is short: 40 tokens and the next one need 3, two more are spare.
    let mut scheduler = with_running(
        Limits {
            rows: 128,
            ..limits()
        },
        1,
    );
    scheduler.submit(request(7, 40, 90)).unwrap();
    let plan = scheduler.plan(5, &[decoding(0, 15, 60)]);
    assert_eq!(
        (windows(&plan), chunks(&plan.admit)),
        (vec![(0, 32)], vec![(7, 32)])
    );
    let mut scheduler = with_running(limits(), 1);
    scheduler.submit(request(7, 40, 90)).unwrap();
    assert_eq!(scheduler.plan(4, &[decoding(0, 15, 60)]).admit, []);
}

#[test]
fn a_window_ends_where_the_request_does() {
    let mut scheduler = with_running(limits(), 1);
    // 897 tokens known, at most 900: two proposed tokens and the one that a round adds.
    assert_eq!(
        windows(&scheduler.plan(90, &[decoding(0, 896, 8)])),
        [(0, 2)]
    );
    assert_eq!(
        windows(&scheduler.plan(90, &[decoding(0, 898, 8)])),
        [(0, 0)]
    );
}

#[test]
fn the_youngest_is_preempted_when_an_older_one_has_no_page_for_a_row() {
    let mut scheduler = with_running(limits(), 3);
    scheduler.submit(request(9, 5, 50)).unwrap();
    let running = [decoding(0, 16, 4), decoding(1, 20, 4), decoding(2, 40, 4)];
    let plan = scheduler.plan(0, &running);
    assert_eq!(plan.preempt, [RequestId(2)]);
    assert_eq!(windows(&plan), [(0, 4), (1, 4)]);
    assert_eq!(plan.admit, []);
    assert_eq!(ids(scheduler.running()), [0, 1]);
    assert_eq!(
        ids(scheduler.waiting()),
        [2, 9],
        "older requests wait before younger ones"
    );

    // It comes back with all tokens it had.
    let plan = scheduler.plan(90, &[decoding(0, 21, 0), decoding(1, 25, 0)]);
    assert_eq!(chunks(&plan.admit), [(2, 32)]);
    assert_eq!(ids(scheduler.running()), [0, 1, 2]);
    let plan = scheduler.plan(90, &[prefilling(2, 32, 41)]);
    assert_eq!(chunks(&plan.prefill), [(2, 9)]);
}

#[test]
fn a_request_in_prefill_is_preempted_for_an_older_one_and_preempts_younger_ones() {
    let mut scheduler = with_running(limits(), 3);
    let running = [
        decoding(0, 16, 0),
        prefilling(1, 32, 100),
        decoding(2, 20, 0),
    ];
    let plan = scheduler.plan(0, &running);
    // Two pages come back: one for the first, one for the second.
    assert_eq!(plan.preempt, [RequestId(2)]);
    assert_eq!(
        (windows(&plan), chunks(&plan.prefill)),
        (vec![(0, 0)], vec![(1, 16)])
    );
    let plan = scheduler.plan(0, &[decoding(0, 32, 0), prefilling(1, 48, 100)]);
    assert_eq!(plan.preempt, [RequestId(1)]);
    assert_eq!(
        (windows(&plan), chunks(&plan.prefill)),
        (vec![(0, 0)], vec![])
    );
}

#[test]
fn the_youngest_waits_for_a_page_rather_than_preempt_itself_or_an_older_one() {
    let mut scheduler = with_running(limits(), 2);
    let plan = scheduler.plan(0, &[decoding(0, 20, 4), decoding(1, 32, 4)]);
    assert_eq!(
        (plan.preempt.as_slice(), windows(&plan)),
        (&[][..], vec![(0, 4)])
    );
}

#[test]
fn nobody_is_preempted_in_vain() {
    let mut scheduler = with_running(limits(), 3);
    // The younger ones own nothing that closing them would free.
    let shared = |id| Running {
        owned_pages: 0,
        ..decoding(id, 20, 0)
    };
    let plan = scheduler.plan(0, &[decoding(0, 16, 0), shared(1), shared(2)]);
    assert_eq!(
        (plan.preempt.as_slice(), windows(&plan)),
        (&[][..], vec![(1, 0), (2, 0)])
    );
}

#[test]
fn a_preemption_skips_those_that_own_nothing() {
    let mut scheduler = with_running(limits(), 3);
    let shared = Running {
        owned_pages: 0,
        ..decoding(2, 20, 0)
    };
    let plan = scheduler.plan(0, &[decoding(0, 16, 0), decoding(1, 20, 0), shared]);
    assert_eq!(plan.preempt, [RequestId(1)]);
    assert_eq!(windows(&plan), [(0, 0), (2, 0)]);

    scheduler.plan(90, &[decoding(0, 17, 0), shared]);
    assert_eq!(
        ids(scheduler.running()),
        [0, 1, 2],
        "it is as old as it was"
    );
}

#[test]
fn what_was_granted_to_the_preempted_goes_to_others() {
    let mut scheduler = with_running(
        Limits {
            rows: 20,
            prefill_rows: 90,
            ..limits()
        },
        2,
    );
    let plan = scheduler.plan(0, &[prefilling(0, 32, 100), decoding(1, 20, 4)]);
    assert_eq!(
        (plan.preempt.as_slice(), windows(&plan)),
        (&[RequestId(1)][..], vec![])
    );
    assert_eq!(chunks(&plan.prefill), [(0, 20)]);
}

#[test]
fn who_sits_out_takes_nothing_and_can_be_preempted() {
    let mut scheduler = with_running(limits(), 2);
    let sits_out = Running {
        ask: Ask::SitOut,
        ..decoding(1, 16, 4)
    };
    let plan = scheduler.plan(5, &[decoding(0, 16, 0), sits_out]);
    assert_eq!(
        (plan.preempt.as_slice(), windows(&plan)),
        (&[][..], vec![(0, 0)])
    );
    let plan = scheduler.plan(0, &[decoding(0, 16, 0), sits_out]);
    assert_eq!(
        (plan.preempt.as_slice(), windows(&plan)),
        (&[RequestId(1)][..], vec![(0, 0)])
    );
}

#[test]
fn who_is_not_described_sits_out() {
    let mut scheduler = with_running(limits(), 2);
    assert_eq!(
        windows(&scheduler.plan(90, &[decoding(1, 10, 2)])),
        [(1, 2)]
    );
    assert_eq!(windows(&scheduler.plan(90, &[decoding(55, 10, 2)])), []);
    assert_eq!(ids(scheduler.running()), [0, 1]);
}

#[test]
fn a_shared_tail_costs_a_page_for_its_copy() {
    let mut scheduler = with_running(limits(), 2);
    let forked = |id| Running {
        shares_tail: true,
        owned_pages: 0,
        ..decoding(id, 10, 20)
    };
    assert_eq!(
        windows(&scheduler.plan(1, &[forked(0), forked(1)])),
        [(0, 5)]
    );
    assert_eq!(
        windows(&scheduler.plan(2, &[forked(0), forked(1)])),
        [(0, 5), (1, 5)]
    );
    assert_eq!(
        windows(&scheduler.plan(3, &[forked(0), forked(1)])),
        [(0, 20), (1, 5)]
    );
}

#[test]
fn a_chunk_of_a_shared_tail_fits_the_pages_there_are() {
    let mut scheduler = with_running(limits(), 1);
    let forked = |pages| Running {
        shares_tail: true,
        owned_pages: pages,
        ..prefilling(0, 10, 90)
    };
    assert_eq!(scheduler.plan(0, &[forked(0)]).prefill, []);
    assert_eq!(chunks(&scheduler.plan(1, &[forked(0)]).prefill), [(0, 6)]);
    assert_eq!(chunks(&scheduler.plan(2, &[forked(0)]).prefill), [(0, 22)]);
}

#[test]
fn admission_is_in_order_and_keeps_pages_for_those_let_in_before() {
    let mut scheduler = with_running(limits(), 1);
    scheduler.submit(request(5, 100, 200)).unwrap();
    scheduler.submit(request(6, 5, 20)).unwrap();
    // 7 pages for 100 tokens and the next, 2 spare.
    let plan = scheduler.plan(8, &[decoding(0, 10, 0)]);
    assert_eq!(plan.admit, [], "the small one does not overtake");
    let plan = scheduler.plan(9, &[decoding(0, 10, 0)]);
    assert_eq!(chunks(&plan.admit), [(5, 32)]);
    // 2 of the 7 pages are in use, 5 are promised, 1 is needed and 3 are spare.
    let pauses = Running {
        ask: Ask::SitOut,
        ..prefilling(5, 32, 100)
    };
    assert_eq!(scheduler.plan(8, &[decoding(0, 11, 0), pauses]).admit, []);
    assert_eq!(
        chunks(&scheduler.plan(9, &[decoding(0, 11, 0), pauses]).admit),
        [(6, 5)]
    );
}

#[test]
fn no_more_run_than_may_and_than_can_decode_in_one_step() {
    for (running, rows) in [(2, 64), (9, 2)] {
        let mut scheduler = Scheduler::new(Limits {
            running,
            rows,
            ..limits()
        });
        for id in 0..3 {
            scheduler.submit(request(id, 1, 20)).unwrap();
        }
        assert_eq!(chunks(&scheduler.plan(90, &[]).admit), [(0, 1), (1, 1)]);
        let running = [decoding(0, 1, 0), decoding(1, 1, 0)];
        assert_eq!(scheduler.plan(90, &running).admit, []);
        scheduler.finish(RequestId(0));
        assert_eq!(scheduler.plan(90, &running[1..]).admit.len(), 1);
    }
}

#[test]
fn a_request_that_fills_the_pool_runs_alone() {
    let mut scheduler = Scheduler::new(Limits {
        pages: 4,
        ..limits()
    });
    scheduler.submit(request(0, 64, 64)).unwrap();
    assert_eq!(chunks(&scheduler.plan(4, &[]).admit), [(0, 64)]);
    let mut scheduler = Scheduler::new(Limits {
        pages: 4,
        ..limits()
    });
    assert_eq!(scheduler.limits().longest(), 64);
    scheduler.submit(request(0, 63, 64)).unwrap();
    assert_eq!(scheduler.plan(3, &[]).admit, []);
    assert_eq!(chunks(&scheduler.plan(4, &[]).admit), [(0, 63)]);
}

#[test]
fn what_cannot_run_is_refused_with_the_reason() {
    let mut scheduler = Scheduler::new(Limits {
        pages: 10,
        waiting: 2,
        ..limits()
    });
    assert_eq!(scheduler.submit(request(0, 0, 10)), Err(Refusal::Empty));
    let too_long = Refusal::TooLong {
        tokens: 1001,
        limit: 1000,
    };
    assert_eq!(scheduler.submit(request(0, 5, 1001)), Err(too_long));
    assert_eq!(scheduler.submit(request(0, 1001, 5)), Err(too_long));
    let never_fits = Refusal::NeverFits {
        needed: 11,
        pages: 10,
    };
    assert_eq!(scheduler.submit(request(0, 5, 161)), Err(never_fits));
    assert_eq!(scheduler.submit(request(0, 5, 160)), Ok(()));
    assert_eq!(
        scheduler.submit(request(0, 5, 160)),
        Err(Refusal::Duplicate(RequestId(0)))
    );
    assert_eq!(scheduler.submit(request(1, 5, 160)), Ok(()));
    assert_eq!(
        scheduler.submit(request(2, 5, 160)),
        Err(Refusal::Full { limit: 2 })
    );
    scheduler.finish(RequestId(0));
    assert_eq!(scheduler.submit(request(2, 5, 160)), Ok(()));
    assert_eq!(ids(scheduler.waiting()), [1, 2]);
}

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
