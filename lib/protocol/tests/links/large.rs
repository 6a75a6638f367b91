//! Frames that fit no buffer on their way.

use std::{sync::atomic::Ordering, thread, time::Duration};

use foretoken_protocol::link::LinkOptions;

use crate::{
    behaviour::{open, outcome, received},
    carrier::{eager, over_sockets, through_proxy, wait_up},
};

/// Sends the largest frame there may be while the peer does not read, and one more when it does.
fn is_carried(beat: Duration) {
    let options = LinkOptions { beat, ..eager() };
    over_sockets(|address| {
        let (endpoint, proxy, target) = through_proxy(address, options);
        wait_up(&target);
        proxy.orders.frozen.store(true, Ordering::SeqCst);
        // Nearly 4 MB; a Unix socket holds 0.2.
        target.link.send(vec![open(1, 1_000_000)]).expect("is up");
        thread::sleep(Duration::from_millis(200));
        proxy.orders.frozen.store(false, Ordering::SeqCst);
        assert!(received(&endpoint, 1) == [open(1, 1_000_000)]);
        target.link.send(vec![outcome(1, 0)]).expect("is up");
        assert_eq!(received(&endpoint, 1), [outcome(1, 0)]);
    });
}

#[test]
fn a_frame_is_whole_though_its_sender_looks_up_from_it_many_times() {
    is_carried(Duration::from_millis(10));
}

#[test]
fn a_sender_that_has_no_room_goes_on_when_there_is_some() {
    // Nothing else wakes it.
    is_carried(Duration::from_secs(3600));
}
