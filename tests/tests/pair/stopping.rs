//! Endpoints that are told to stop.

use std::time::Duration;

use foretoken_draft::DraftConfig;
use foretoken_engine::sim::Role;
use foretoken_protocol::{
    generate::{GenerateEvent, GenerateStream},
    link::{Consumer, LinkEvent, LoadReport},
};
use foretoken_speculation::{
    Epoch, Seed, SessionId, TokenId,
    message::{Open, ToDraft, ToTarget},
    sampling::SamplingParams,
};
use futures::StreamExt as _;

use super::{dialled::Dialled, rig::*};

impl Dialled {
    /// The answer to an `Open` of this session.
    fn open(&self, session: u64) -> ToTarget {
        let open = Open {
            session: SessionId(session),
            epoch: Epoch(1),
            sampling: SamplingParams::default(),
            seed: Seed(1),
            prompt_len: 4,
            tokens: vec![TokenId(2); 4],
            ..Open::default()
        };
        self.link.send(vec![ToDraft::Open(open)]).expect("it is up");
        self.wait("an answer to Open", |event| match event {
            LinkEvent::Messages(messages) => messages.into_iter().find(|message| match message {
                ToTarget::Opened { session: id, .. } | ToTarget::Refused { session: id, .. } => {
                    id.0 == session
                }
                ToTarget::Window(_)
                | ToTarget::Entries(_)
                | ToTarget::Resync(_)
                | ToTarget::Account(_) => false,
            }),
            _ => None,
        })
    }

    fn close(&self, session: u64) {
        let close = ToDraft::Close {
            session: SessionId(session),
            epoch: Epoch(1),
        };
        self.link.send(vec![close]).expect("it is up");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopping_endpoint_says_so_turns_sessions_away_and_ends_with_its_last_one() {
    let folder = tempfile::tempdir().expect("a folder");
    let config = DraftConfig {
        listen: vec![socket(&folder, "draft")],
        // Nothing but the end of its sessions ends it.
        grace: Duration::from_secs(3600),
        ..DraftConfig::default()
    };
    let address = config.listen[0].clone();
    let endpoint = draft_of(config, runner(sim(Role::Draft { agreement: 0.9 })));
    let dialled = Dialled::new(&address, Consumer::default());
    assert!(matches!(dialled.open(1), ToTarget::Opened { .. }));
    endpoint.stop.cancel();
    let told = |event| match event {
        LinkEvent::Load(load @ LoadReport { draining: true, .. }) => Some(load),
        _ => None,
    };
    assert_eq!(dialled.wait("a word of the drain", told).used, 1);
    match dialled.open(2) {
        ToTarget::Refused { retry, reason, .. } => {
            assert!(retry && reason.contains("stopping"), "{reason}");
        }
        other => panic!("a session was opened: {other:?}"),
    }
    assert!(!endpoint.task.is_finished(), "session 1 is still open");
    dialled.close(1);
    tokio::time::timeout(PATIENT, endpoint.end())
        .await
        .expect("it ends with its last session");
    dialled.wait("Down", |event| {
        matches!(event, LinkEvent::Down(_)).then_some(())
    });
}

/// Reads until a token comes that a draft had proposed.
async fn reads_accepted(stream: &mut GenerateStream, tokens: &mut Vec<TokenId>) {
    loop {
        let event = stream.next().await.expect("it goes on");
        match event.expect("the target lives") {
            GenerateEvent::Tokens(round) => {
                tokens.extend(round.tokens.iter().map(|piece| piece.token));
                if round.tokens.iter().any(|piece| piece.accepted) {
                    return;
                }
            }
            GenerateEvent::Started { .. } => {}
            GenerateEvent::Finished { .. } => panic!("nothing was accepted"),
        }
    }
}

#[tokio::test]
async fn an_endpoint_stopped_amid_an_output_ends_well_and_is_not_missed() {
    let folder = tempfile::tempdir().expect("a folder");
    let address = socket(&folder, "draft");
    let config = DraftConfig {
        listen: vec![address.clone()],
        grace: Duration::from_millis(50),
        ..DraftConfig::default()
    };
    let endpoint = draft_of(config, runner(sim(Role::Draft { agreement: 0.9 })));
    let (client, target) = target(with_endpoint(&address), runner(sim(Role::Target)));
    warm(&client).await;
    let asked = request(21, 2000);
    let mut stream = client.generate(asked.clone()).await.expect("accepted");
    let mut tokens = Vec::new();
    reads_accepted(&mut stream, &mut tokens).await;
    endpoint.end().await;
    let stats = collect(stream, &mut tokens).await;
    assert!(stats.accepted > 0, "{stats:?}");
    assert_eq!(tokens, plain(&client, asked).await);
    let (tokens, stats) = output(&client, request(22, 40)).await;
    assert_eq!((tokens.len(), stats.drafted), (40, 0));
    target.end().await;
}
