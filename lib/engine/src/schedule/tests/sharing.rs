//! How rows and pages are shared.

use super::*;

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
