//! Who is bound to which endpoint.

use std::time::Duration;

use foretoken_protocol::{
    Address,
    link::{LinkEvent, Welcome},
};
use foretoken_speculation::{Epoch, SessionId, message::ToTarget};

use super::rig::{Output, Rig, language, plain, request};
use crate::{
    config::{LookaheadConfig, TargetConfig},
    inbox::{LinkKey, Message, Source},
};

fn rig() -> Rig {
    let config = TargetConfig {
        lookahead: LookaheadConfig::Fixed(4),
        ..TargetConfig::default()
    };
    let mut rig = Rig::new(config, language(), 1.0);
    rig.connect();
    rig
}

/// It refuses the `number`-th request, for now.
fn refuse(rig: &mut Rig, number: u64) {
    let refused = ToTarget::Refused {
        session: SessionId(number),
        epoch: Epoch(1),
        reason: "all slots are taken".into(),
        retry: true,
    };
    rig.link(LinkEvent::Messages(vec![refused].into()));
}

fn until(rig: &mut Rig, output: &mut Output, tokens: usize) {
    while output.tokens.len() < tokens {
        rig.turn();
        output.collect();
    }
}

#[test]
fn who_waits_to_ask_again_does_so_though_another_endpoint_comes_that_it_may_not_have() {
    let mut rig = rig();
    let named = |name: &str, port| Source {
        name: name.into(),
        callee: Address::loopback(port).into(),
        share: None,
    };
    let list = vec![named("draft", 1), named("other", 2)];
    rig.worker.take(Message::Endpoints(list));
    let mut asked = request(1, 1.0, 60);
    asked.endpoints = vec!["draft".into()];
    let mut output = rig.ask(asked.clone());
    until(&mut rig, &mut output, 5);
    refuse(&mut rig, 1);
    rig.endpoint.restart();
    let at = rig.worker.clock.now();
    let up = LinkEvent::Up(Welcome::default());
    rig.worker.take(Message::Link(LinkKey(2), up, at));
    until(&mut rig, &mut output, 10);
    assert_eq!(rig.endpoint.sessions(), 0, "it is too early");
    rig.pass(Duration::from_millis(500));
    until(&mut rig, &mut output, 30);
    assert_eq!(rig.endpoint.sessions(), 1);
    rig.run(std::slice::from_mut(&mut output));
    assert_eq!(output.tokens, plain(&asked));
}
