//! Who gives way, and who sits out.

use super::*;

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
fn pages_that_only_younger_ones_share_come_back_when_nobody_could_run() {
    let mut scheduler = with_running(limits(), 3);
    // Closing one of them frees nothing; the other then owns the pages alone.
    let shared = |id| Running {
        owned_pages: 0,
        ..decoding(id, 32, 0)
    };
    let plan = scheduler.plan(0, &[decoding(0, 16, 0), shared(1), shared(2)]);
    assert_eq!(plan.preempt, [RequestId(2)]);
    assert_eq!((windows(&plan), plan.admit), (vec![], vec![]));
    let plan = scheduler.plan(0, &[decoding(0, 16, 0), decoding(1, 32, 0)]);
    assert_eq!(plan.preempt, [RequestId(1)]);
    assert_eq!(windows(&plan), [(0, 0)]);

    // Nobody gives way where nobody wants a row, nor the only one who does.
    let mut scheduler = with_running(limits(), 2);
    let sits_out = |id| Running {
        ask: Ask::SitOut,
        ..shared(id)
    };
    assert_eq!(scheduler.plan(0, &[sits_out(0), sits_out(1)]).preempt, []);
    assert_eq!(scheduler.plan(0, &[sits_out(0), shared(1)]).preempt, []);
    let plan = scheduler.plan(0, &[shared(0), sits_out(1)]);
    assert_eq!(plan.preempt, [RequestId(1)]);
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
