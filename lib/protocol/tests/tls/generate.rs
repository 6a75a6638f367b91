//! Routers and targets.

use std::sync::Arc;

use foretoken_protocol::{
    Address, Callee, Listener,
    generate::{
        EventSender, GenerateClient, GenerateError, GenerateRequest, GenerateService, TargetInfo,
        TargetLoad, serve_generate,
    },
    tls::{Role, Served, Tls},
};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::Place;

struct Target;

impl GenerateService for Target {
    fn generate(&self, _: GenerateRequest, _: EventSender) -> Result<(), GenerateError> {
        Ok(())
    }

    fn info(&self) -> TargetInfo {
        TargetInfo {
            instance: "target-0".into(),
            model_digest: "digest".into(),
            tokenizer_digest: String::new(),
            path: "portable".into(),
            vocab_size: 12,
            max_positions: 512,
            policy: "Speculative".into(),
            load: TargetLoad::default(),
        }
    }
}

/// A target with this certificate, until the guard is dropped.
fn serve(tls: Option<Tls>) -> (Address, DropGuard) {
    let listener = Listener::bind(&Address::loopback(0)).expect("binds");
    let address = listener.address().clone();
    let stop = CancellationToken::new();
    let listener = listener.with_tls(tls);
    tokio::spawn(serve_generate(listener, Arc::new(Target), stop.clone()));
    (address, stop.drop_guard())
}

/// What becomes of a router's question.
async fn ask(callee: impl Into<Callee>, tls: Option<Tls>) -> String {
    let client = GenerateClient::new("target", callee).with_tls(tls);
    match client.info().await {
        Ok(info) => info.instance,
        Err(error) => error.to_string(),
    }
}

fn says(said: &str, expected: &str) {
    assert!(said.contains(expected), "{said:?} without {expected:?}");
}

#[tokio::test]
async fn a_target_answers_routers_of_its_namespace_and_nobody_else() {
    let place = Place::new();
    let (address, _serving) = serve(Some(place.tls(Role::Target, "chat")));
    let asks = async |role, namespace| ask(address.clone(), Some(place.tls(role, namespace))).await;
    says(&asks(Role::Router, "chat").await, "target-0");
    says(
        &asks(Role::Draft, "chat").await,
        "story answers routers only, and this is spiffe://foretoken/ns/chat/draft/story",
    );
    says(&asks(Role::Target, "chat").await, "answers routers only");
    // The router of another namespace does not even tell what it wants.
    says(
        &asks(Role::Router, "other").await,
        "ns/chat/target/story answers where a target of namespace other is expected",
    );
    says(&asks(Role::Router, "chat").await, "target-0");
}

#[tokio::test]
async fn a_router_asks_nobody_but_targets() {
    let place = Place::new();
    let (address, _serving) = serve(Some(place.tls(Role::Draft, "chat")));
    let said = ask(address.clone(), Some(place.tls(Role::Router, "chat"))).await;
    says(
        &said,
        "ns/chat/draft/story answers where a target is expected",
    );
}

#[tokio::test]
async fn a_router_asks_no_other_deployments_target() {
    let place = Place::new();
    let (address, _serving) = serve(Some(place.tls(Role::Target, "chat")));
    for (name, said) in [
        ("story", "target-0"),
        ("code", "answers where the target of chat/code is expected"),
    ] {
        let callee = Callee {
            address: address.clone(),
            serves: Some(Served::new("chat", name).expect("names")),
        };
        let router = Some(place.tls(Role::Router, "chat"));
        says(&ask(callee, router).await, said);
    }
}

#[tokio::test]
async fn one_end_without_tls_is_told_what_is_missing() {
    let place = Place::new();
    let (address, _serving) = serve(Some(place.tls(Role::Target, "chat")));
    says(&ask(address.clone(), None).await, "the port asks for TLS");
    let (address, _serving) = serve(None);
    let said = ask(address.clone(), Some(place.tls(Role::Router, "chat"))).await;
    says(&said, "the peer speaks plain text and this side TLS");
}

#[tokio::test]
async fn a_client_that_keeps_silent_holds_nobody_up() {
    let place = Place::new();
    let (address, _serving) = serve(Some(place.tls(Role::Target, "chat")));
    let Address::Tcp { host, port } = &address else {
        unreachable!("it was bound to a port");
    };
    let silent = tokio::net::TcpStream::connect((host.as_str(), *port)).await;
    let said = ask(address.clone(), Some(place.tls(Role::Router, "chat"))).await;
    says(&said, "target-0");
    drop(silent);
}
