//! Who may use an endpoint, over every carrier.

use foretoken_protocol::link::{Grants, LinkEvent, Terms};
use tokio::sync::watch;

use crate::carrier::{LONG, dial, eager, hello, over_sockets, serve_on, wait_up, welcome};

#[test]
fn who_may_not_use_an_endpoint_is_told_so_and_not_that_the_two_do_not_match() {
    over_sockets(|address| {
        let (grants, granted) = watch::channel(Grants::Only([].into()));
        let terms = Terms::new(welcome(), eager()).granted_to(granted);
        let endpoint = serve_on(address, terms);
        let target = dial(endpoint.server.address(), hello(), eager());
        let next = || target.events.recv_timeout(LONG).expect("an event");
        let says_why = |event: LinkEvent| {
            let is_told = matches!(&event, LinkEvent::Down(why) if why.contains("does not allow"));
            assert!(is_told, "{event:?}");
        };
        says_why(next());
        grants.send_replace(Grants::All);
        wait_up(&target);
        grants.send_replace(Grants::Only([].into()));
        let mut event = next();
        while !matches!(event, LinkEvent::Down(_)) {
            assert!(!matches!(event, LinkEvent::Incompatible(_)), "{event:?}");
            event = next();
        }
        says_why(event);
        // It goes on asking, and is told nothing else.
        grants.send_replace(Grants::All);
        wait_up(&target);
    });
}
