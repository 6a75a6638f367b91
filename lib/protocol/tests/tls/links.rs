//! Targets and endpoints.

use std::{
    fs,
    net::TcpStream,
    sync::mpsc::{Receiver, channel},
    time::Duration,
};

use foretoken_protocol::{
    Address, Callee, Listener,
    link::{
        Consumer, Grants, Hello, Link, LinkEvent, LinkOptions, LinkServer, ServerEvent, Terms,
        Transport, TransportOptions, Welcome,
    },
    tls::{Role, Served, Tls},
};
use foretoken_speculation::{SessionId, message::ToDraft};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::{
    Place,
    authority::{Authority, Wanted, write},
};

/// Far longer than anything takes.
const LONG: Duration = Duration::from_secs(30);

fn options() -> LinkOptions {
    LinkOptions {
        backoff_min: Duration::from_millis(2),
        backoff_max: Duration::from_millis(20),
        dead_after: Duration::from_secs(10),
        suspect_after: Duration::from_secs(5),
        ..LinkOptions::default()
    }
}

struct Draft {
    server: LinkServer,
    events: Receiver<ServerEvent>,
    grants: watch::Sender<Grants>,
    _transport: Transport,
}

/// An endpoint with this certificate.
fn serve(tls: Option<Tls>, grants: Grants) -> Draft {
    let transport = Transport::start(TransportOptions::default()).expect("a thread");
    let listener = Listener::bind(&Address::loopback(0)).expect("binds");
    let (sender, events) = channel();
    let (grants, granted) = watch::channel(grants);
    let terms = Terms::new(Welcome::default(), options()).granted_to(granted);
    let stop = CancellationToken::new();
    let on_event = move |event| drop(sender.send(event));
    let server = transport.serve(listener.with_tls(tls), terms, &stop, on_event);
    Draft {
        server: server.expect("serves"),
        events,
        grants,
        _transport: transport,
    }
}

struct Target {
    link: Link,
    events: Receiver<LinkEvent>,
    _transport: Transport,
}

/// A target with this certificate.
fn dial(callee: impl Into<Callee>, tls: Option<Tls>) -> Target {
    dial_with(options(), callee, tls)
}

fn dial_with(options: LinkOptions, callee: impl Into<Callee>, tls: Option<Tls>) -> Target {
    let options_of_transport = TransportOptions {
        tls,
        ..TransportOptions::default()
    };
    let transport = Transport::start(options_of_transport).expect("a thread");
    let (sender, events) = channel();
    let on_event = move |event| drop(sender.send(event));
    let hello = Hello {
        consumer: Consumer {
            namespace: "claimed".into(),
            deployment: "claimed".into(),
        },
        ..Hello::default()
    };
    let stop = CancellationToken::new();
    let link = transport.dial(callee, hello, options, &stop, on_event);
    Target {
        link,
        events,
        _transport: transport,
    }
}

impl Target {
    /// The next that is heard of the link.
    fn hears(&self) -> String {
        told(self.events.recv_timeout(LONG).expect("an event"))
    }

    /// Waits until something with these words is heard.
    fn waits_for(&self, words: &str) {
        let mut heard = Vec::new();
        while !heard
            .last()
            .is_some_and(|said: &String| said.contains(words))
        {
            let event = self.events.recv_timeout(LONG);
            let event = event.unwrap_or_else(|_| unreachable!("{words:?} is not in {heard:?}"));
            heard.push(told(event));
        }
    }
}

/// An event in words.
fn told(event: LinkEvent) -> String {
    match event {
        LinkEvent::Up(_) => "up".into(),
        LinkEvent::Down(reason) => format!("down: {reason}"),
        LinkEvent::Incompatible(reason) => format!("refused: {reason}"),
        other => format!("{other:?}"),
    }
}

impl Draft {
    /// Where it is.
    fn at(&self) -> Address {
        self.server.address().clone()
    }

    /// Waits until a target is there, and tells whose it is.
    fn waits_for_target(&self) -> Consumer {
        loop {
            let event = self.events.recv_timeout(LONG).expect("an event");
            if let ServerEvent::Up { hello, .. } = event {
                return hello.consumer;
            }
        }
    }
}

#[test]
fn a_target_is_of_the_namespace_of_its_certificate_whatever_it_claims() {
    let place = Place::new();
    let draft = serve(Some(place.tls(Role::Draft, "drafts")), Grants::All);
    let _target = dial(draft.at(), Some(place.tls(Role::Target, "chat")));
    let consumer = Consumer {
        namespace: "chat".into(),
        deployment: "story".into(),
    };
    assert_eq!(draft.waits_for_target(), consumer);
}

#[test]
fn an_endpoint_serves_nobody_but_targets() {
    let place = Place::new();
    let draft = serve(Some(place.tls(Role::Draft, "drafts")), Grants::All);
    for role in [Role::Router, Role::Draft] {
        let other = dial(draft.at(), Some(place.tls(role, "chat")));
        other.waits_for(&format!(
            "down: spiffe://foretoken/ns/drafts/draft/story serves targets only, and this is \
             spiffe://foretoken/ns/chat/{role}/story"
        ));
    }
}

#[test]
fn a_target_drafts_with_nobody_but_endpoints() {
    let place = Place::new();
    let other = serve(Some(place.tls(Role::Router, "drafts")), Grants::All);
    let target = dial(other.at(), Some(place.tls(Role::Target, "chat")));
    target.waits_for("ns/drafts/router/story answers where a draft is expected");
}

#[test]
fn a_target_drafts_with_no_other_endpoint_than_the_one_it_asked_for() {
    let place = Place::new();
    let draft = serve(Some(place.tls(Role::Draft, "drafts")), Grants::All);
    let asks = |namespace, name| {
        let callee = Callee {
            address: draft.at(),
            serves: Some(Served::new(namespace, name).expect("names")),
        };
        dial(callee, Some(place.tls(Role::Target, "chat")))
    };
    asks("drafts", "story").waits_for("up");
    for (namespace, name) in [("drafts", "other"), ("other", "story")] {
        asks(namespace, name).waits_for(&format!(
            "ns/drafts/draft/story answers where the draft of {namespace}/{name} is expected"
        ));
    }
}

#[test]
fn one_end_without_tls_is_told_what_is_missing() {
    let place = Place::new();
    let draft = serve(Some(place.tls(Role::Draft, "drafts")), Grants::All);
    let plain = dial(draft.at(), None);
    plain.waits_for("the port asks for TLS");
    let draft = serve(None, Grants::All);
    let target = dial(draft.at(), Some(place.tls(Role::Target, "chat")));
    target.waits_for("the peer speaks plain text and this side TLS");
}

#[test]
fn connections_that_say_nothing_keep_no_target_out() {
    const SILENT: usize = 300;
    let place = Place::new();
    let draft = serve(Some(place.tls(Role::Draft, "drafts")), Grants::All);
    let Address::Tcp { host, port } = draft.at() else {
        unreachable!("it is served over TCP")
    };
    let connect = |_| TcpStream::connect((host.as_str(), port)).expect("connects");
    let silent: Vec<_> = (0..SILENT).map(connect).collect();
    // Less than the silent ones may take, and far more than a handshake does.
    let options = LinkOptions {
        dead_after: Duration::from_secs(4),
        ..options()
    };
    let target = dial_with(options, draft.at(), Some(place.tls(Role::Target, "chat")));
    assert_eq!(target.hears(), "up");
    drop(silent);
}

#[test]
fn a_stranger_is_told_that_its_authority_is_not_accepted() {
    let (place, elsewhere) = (Place::new(), Place::new());
    let draft = serve(Some(place.tls(Role::Draft, "drafts")), Grants::All);
    let tls = elsewhere.tls(Role::Target, "chat");
    let both = format!("{}{}", place.authority.pem, elsewhere.authority.pem);
    fs::write(elsewhere.folder(Role::Target, "chat").join("ca.crt"), both).expect("a file");
    std::thread::sleep(Duration::from_millis(500));
    let stranger = dial(draft.at(), Some(tls));
    stranger.waits_for("the peer does not accept the authority of this side's certificate");
}

#[test]
fn a_namespace_without_a_grant_is_refused_and_one_that_loses_it_is_sent_away() {
    let place = Place::new();
    let only = |names: &[&str]| Grants::Only(names.iter().map(|&name| name.into()).collect());
    let draft = serve(
        Some(place.tls(Role::Draft, "drafts")),
        only(&["chat", "code"]),
    );
    let address = draft.at();
    let [chat, code, other] = ["chat", "code", "other"]
        .map(|namespace| dial(address.clone(), Some(place.tls(Role::Target, namespace))));
    other.waits_for("down: this endpoint does not allow namespace \"other\"");
    chat.waits_for("up");
    code.waits_for("up");
    draft.grants.send_replace(only(&["code"]));
    chat.waits_for("down: this endpoint does not allow namespace \"chat\"");
    let close = ToDraft::Close {
        session: SessionId(1),
        epoch: foretoken_speculation::Epoch(1),
    };
    assert_eq!(code.link.send(vec![close]), Ok(()), "others stay");
    draft.grants.send_replace(only(&["chat", "code"]));
    chat.waits_for("up");
}

#[test]
fn certificates_and_their_authority_are_replaced_while_links_stay_up() {
    let place = Place::new();
    let (draft_tls, target_tls) = (
        place.tls(Role::Draft, "drafts"),
        place.tls(Role::Target, "chat"),
    );
    let draft = serve(Some(draft_tls.clone()), Grants::All);
    let target = dial(draft.at(), Some(target_tls.clone()));
    target.waits_for("up");
    let (old, new) = (&place.authority, Authority::new("new"));
    let both = format!("{}{}", old.pem, new.pem);
    let replace = |role: Role, namespace: &str, authority: &Authority, ca: &str| {
        let name = format!("spiffe://foretoken/ns/{namespace}/{role}/story");
        let wanted = Wanted {
            name: Some(&name),
            until: 2999,
        };
        write(
            &place.folder(role, namespace),
            &authority.issue(&wanted),
            ca,
        );
    };
    // First everybody believes the new authority, then everybody is of it, then nobody believes the old.
    for (authority, ca) in [(old, &both), (&new, &both), (&new, &new.pem)] {
        for (role, namespace) in [(Role::Draft, "drafts"), (Role::Target, "chat")] {
            replace(role, namespace, authority, ca);
            std::thread::sleep(Duration::from_millis(300));
            let later = dial(draft.at(), Some(target_tls.clone()));
            assert_eq!(later.hears(), "up", "{role} of {namespace}");
        }
    }
    assert!(
        target.events.try_recv().is_err(),
        "the first link never noticed"
    );
}
