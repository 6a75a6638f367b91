//! Who is let in, and what shared pages cost.

use super::*;

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
fn an_owner_of_many_leaves_places_and_whoever_has_least_comes_next() {
    let owned = |id, owner| Request {
        owner,
        ..request(id, 1, 20)
    };
    let mut scheduler = Scheduler::new(Limits {
        running: 10,
        waiting: 100,
        ..limits()
    });
    for id in 0..20 {
        scheduler.submit(owned(id, 0)).unwrap();
    }
    let admit = |scheduler: &mut Scheduler| {
        let running: Vec<_> = scheduler.running().map(|id| decoding(id.0, 1, 0)).collect();
        let plan = scheduler.plan(1000, &running);
        plan.admit
            .iter()
            .map(|chunk| chunk.id.0)
            .collect::<Vec<_>>()
    };
    assert_eq!(admit(&mut scheduler), [0, 1, 2, 3, 4, 5, 6, 7]);
    assert_eq!(admit(&mut scheduler), [0; 0], "two places are kept");
    scheduler.submit(owned(100, 1)).unwrap();
    scheduler.submit(owned(101, 1)).unwrap();
    scheduler.submit(owned(102, 2)).unwrap();
    // One each, although the second of owner 1 came before.
    assert_eq!(admit(&mut scheduler), [100, 102]);
    for done in [0, 1, 2, 102] {
        scheduler.finish(RequestId(done));
    }
    assert_eq!(admit(&mut scheduler), [101, 8, 9]);
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
