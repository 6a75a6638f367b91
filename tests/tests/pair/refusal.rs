//! Endpoints that do not go together with a target.

use foretoken_draft::{DraftConfig, DraftService};
use foretoken_engine::sim::{Role, SimOptions};
use foretoken_protocol::{Address, generate::GenerateClient};
use foretoken_target::{LinkReport, LinkState, TargetConfig, TargetService};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream, tcp::OwnedReadHalf, tcp::OwnedWriteHalf},
};

use super::rig::*;

/// A target of `config`, and what became of its only link, once that is decided.
async fn decided(
    config: TargetConfig,
) -> (
    GenerateClient,
    Running<foretoken_target::RunError>,
    LinkState,
) {
    let service = TargetService::bind(config, runner(sim(Role::Target))).expect("a free port");
    let address = service.addresses().next().expect("it listens").clone();
    let mut links = service.links();
    let running = Running::start(|stop| service.run(stop));
    let state = async {
        loop {
            if let [LinkReport { state, .. }] = links.now().as_slice()
                && matches!(state, LinkState::Up | LinkState::Refused(_))
            {
                return state.clone();
            }
            assert!(links.changed().await, "the target ended");
        }
    };
    let state = tokio::time::timeout(PATIENT, state).await;
    let client = GenerateClient::new("target", address);
    (client, running, state.expect("it is decided"))
}

#[tokio::test]
async fn an_endpoint_of_another_vocabulary_is_refused_with_a_reason_and_not_missed() {
    let folder = tempfile::tempdir().expect("a folder");
    let address = socket(&folder, "draft");
    let other = SimOptions {
        vocab_size: 256,
        ..sim(Role::Draft { agreement: 1.0 })
    };
    let endpoint = draft(&address, runner(other));
    let (client, target, state) = decided(with_endpoint(&address)).await;
    let LinkState::Refused(reason) = state else {
        panic!("not refused: {state:?}");
    };
    assert!(reason.contains("a vocabulary of 128 entries"), "{reason}");
    assert!(reason.contains("of 256"), "{reason}");
    for seed in 0..5 {
        let (tokens, stats) = output(&client, request(seed, 40)).await;
        assert_eq!((tokens.len(), stats.drafted), (40, 0));
    }
    target.end().await;
    endpoint.end().await;
}

/// Passes bytes on; the version in the target's introduction becomes 99.
async fn other_version(mut from: OwnedReadHalf, mut to: OwnedWriteHalf) -> std::io::Result<()> {
    // A length of 6 and the name of the instance come right behind the version.
    let behind = b"\x12\x06target";
    let mut buffer = vec![0; 4096];
    loop {
        let read = from.read(&mut buffer).await?;
        let bytes = &mut buffer[..read];
        if let Some(at) = bytes.windows(behind.len()).position(|w| w == behind) {
            bytes[at - 1] = 99;
        }
        if read == 0 {
            return to.shutdown().await;
        }
        to.write_all(bytes).await?;
    }
}

#[tokio::test]
async fn an_endpoint_of_another_protocol_version_is_refused_with_a_reason_and_not_missed() {
    let service = DraftService::bind(
        DraftConfig::default(),
        runner(sim(Role::Draft { agreement: 1.0 })),
    );
    let service = service.expect("a free port");
    let real = service.addresses().next().expect("it listens").to_string();
    let real = real.trim_start_matches("http://").to_owned();
    let endpoint = Running::start(|stop| service.run(stop));
    let proxy = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let port = proxy.local_addr().expect("bound").port();
    let proxying = tokio::spawn(async move {
        while let Ok((target, _)) = proxy.accept().await {
            let draft = TcpStream::connect(&real).await.expect("it listens");
            let (from_target, mut to_target) = target.into_split();
            let (mut from_draft, to_draft) = draft.into_split();
            tokio::spawn(other_version(from_target, to_draft));
            tokio::spawn(async move { tokio::io::copy(&mut from_draft, &mut to_target).await });
        }
    });
    let (client, target, state) = decided(with_endpoint(&Address::loopback(port))).await;
    let LinkState::Refused(reason) = state else {
        panic!("not refused: {state:?}");
    };
    assert!(reason.contains("protocol version 99"), "{reason}");
    assert!(reason.contains("run the same release"), "{reason}");
    let (tokens, stats) = output(&client, request(1, 40)).await;
    assert_eq!((tokens.len(), stats.drafted), (40, 0));
    target.end().await;
    endpoint.end().await;
    proxying.abort();
}
